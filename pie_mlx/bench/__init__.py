"""Measurements: ours beside mlx-lm, in one process and one run, interleaved pair by pair."""
