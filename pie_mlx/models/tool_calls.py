"""The forms in which models write tool calls: those that mlx-lm knows, recognised by the chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

_BY_TEMPLATE = (
    ("<minimax:tool_call>", "minimax_m2"),
    ("<|tool_call>", "gemma4"),
    ("<longcat_tool_call>", "longcat"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|tool_call_start|>", "pythonic"),
)
"""A text in the chat template, and mlx-lm's parser for its calls; Hermes' own form needs none."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The texts around a call (``end`` may be empty: the end of the answer), and what reads between them."""

    start: str
    end: str
    parse: Callable[[str], object]


def own_format(template: str | None) -> CallFormat | None:
    """Return the form of calls that a chat template shows, None where it shows none that mlx-lm can parse."""
    for sign, name in _BY_TEMPLATE:
        if template is not None and sign in template:
            parser = import_module(f"mlx_lm.tool_parsers.{name}")
            return CallFormat(parser.tool_call_start, parser.tool_call_end or "", parser.parse_tool_call)
    return None
