"""Which formats there are, and the one function that writes them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from pie_mlx.errors import UsageError
from pie_mlx.search.export.graphs import to_dot, to_mermaid
from pie_mlx.search.export.html import to_html
from pie_mlx.search.export.json_text import to_json_text
from pie_mlx.search.export.speedscope import to_speedscope
from pie_mlx.search.export.story import Story, tell
from pie_mlx.search.export.svg import to_svg
from pie_mlx.search.trace import Trace

FORMATS: Mapping[str, Callable[[Story], str]] = {
    "html": to_html,
    "svg": to_svg,
    "mermaid": to_mermaid,
    "dot": to_dot,
    "json": to_json_text,
    "speedscope": to_speedscope,
}
"""Writers by the name that ``--format`` takes."""


def export(trace: Trace, format: str) -> str:  # noqa: A002
    """Return a trace in another format, as text.

    Raises:
        UsageError: there is no such format.
        TraceError: the events contradict each other.
    """
    write = FORMATS.get(format)
    if write is None:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise UsageError(f"there is no export format {format[:40]!r}: choose one of {', '.join(FORMATS)}", hint)
    return write(tell(trace))
