"""Tree search over contexts: tree, trace, tasks, scorers, strategies and the run that joins them."""
