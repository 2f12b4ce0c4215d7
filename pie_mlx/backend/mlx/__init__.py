"""The MLX backend: an arena of K/V slots, attention over views of it, and one forward pass a step.

Import :mod:`pie_mlx.backend.mlx.backend` for the class itself: this package stays importable without MLX.
"""
