"""Exports of a trace: single-file HTML, SVG, Mermaid, DOT, JSON and speedscope."""

from pie_mlx.search.export.registry import FORMATS, export

__all__ = ["FORMATS", "export"]
