"""Widgets of the tree screen."""
