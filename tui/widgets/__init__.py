"""Widgets, in folders by the region of the screen that they fill."""
