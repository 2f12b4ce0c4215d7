"""Widgets that every screen has: title, alarms, keys, tables."""
