"""The HTTP daemon: an OpenAI-compatible front of one engine, with searches, pages and metrics."""
