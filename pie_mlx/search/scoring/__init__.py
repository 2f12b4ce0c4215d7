"""Scorers: how a state gets its value."""
