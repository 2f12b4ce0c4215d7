"""One module a command; each imports the engine inside its functions, so that ``--help`` is quick."""
