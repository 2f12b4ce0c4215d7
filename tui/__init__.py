"""The workbench: a full-screen view of search trees, the engine's pages and chats, steered with the keyboard."""
