"""Widgets of the engine screen."""
