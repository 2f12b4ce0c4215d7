"""The terminal chat: editing a message, showing a reply as it streams, and the loop around both."""
