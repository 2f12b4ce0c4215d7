"""The command line: ``main`` is its edge, ``commands`` its verbs, ``render`` its only way to stdout."""
