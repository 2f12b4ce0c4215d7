"""How a model writes tool calls: recognised by its chat template, read by mlx-lm's parsers.

The default is Hermes' form, ``<tool_call>`` around ``{"name": …, "arguments": {…}}``, which many models were taught
and any model can be told of. Other forms are recognised by what their templates write.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tool = Mapping[str, Any]

# What an answer may contain beside the two markers, as control tokens, when it is a call.
_CALL_LIKE = re.compile(r"tool_?call|tool_list|function|arg_|\[ARGS\]|\[CALL_ID\]|<escape>|<\|\"\|>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as the model wrote it; whether there is such a function is not yet known."""

    name: str
    arguments: str
    """JSON as text, or what stands in its place."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """One way of writing calls: the text before and behind one, and what reads the text between."""

    start: str
    end: str
    """Empty where a call ends with the answer."""
    parser: str | None = None
    """Module of ``mlx_lm.tool_parsers``; None reads JSON."""

    def read(self, text: str, tools: Sequence[Tool]) -> list[RawCall]:
        """Return the calls that the text between the markers is, none where it is not all calls.

        ``tools`` are the definitions that the model was told: some forms do not write types.
        """
        try:
            parsed = json.loads(text) if self.parser is None else _parser(self.parser)(text, list(tools))
        except (ValueError, SyntaxError, LookupError, TypeError, AttributeError, RecursionError):
            # Whatever a parser makes of a model's text: what it cannot read is no call.
            return []
        found = parsed if isinstance(parsed, list) else [parsed]
        calls = [call for item in found if (call := _call(item)) is not None]
        return calls if len(calls) == len(found) else []

    def shows(self, token: str) -> bool:
        """Whether a control token is part of a written call, and so of the text that must reach :meth:`read`."""
        if self.parser is None:
            return False
        return token in self.start or (token in self.end) or _CALL_LIKE.search(token) is not None


HERMES = CallForm("<tool_call>", "</tool_call>")

# In the order of mlx-lm: what a template must contain, and the form that it then has.
_KNOWN: tuple[tuple[tuple[str, ...], CallForm], ...] = (
    (("<minimax:tool_call>",), CallForm("<minimax:tool_call>", "</minimax:tool_call>", "minimax_m2")),
    (("<|tool_call>", "<tool_call|>"), CallForm("<|tool_call>", "<tool_call|>", "gemma4")),
    (("<start_function_call>",), CallForm("<start_function_call>", "<end_function_call>", "function_gemma")),
    (("<longcat_tool_call>",), CallForm("<longcat_tool_call>", "</longcat_tool_call>", "longcat")),
    (("<arg_key>",), CallForm("<tool_call>", "</tool_call>", "glm47")),
    (("<|tool_list_start|>",), CallForm("<|tool_call_start|>", "<|tool_call_end|>", "pythonic")),
    (("<|tool_call_start|>",), CallForm("<|tool_call_start|>", "<|tool_call_end|>", "pythonic")),
    (("<tool_call>\\n<function=",), CallForm("<tool_call>", "</tool_call>", "qwen3_coder")),
    (("<tool_call>\n<function=",), CallForm("<tool_call>", "</tool_call>", "qwen3_coder")),
    (
        ("<|tool_calls_section_begin|>",),
        CallForm("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "kimi_k2"),
    ),
    (('<function name="', '<param name="'), CallForm("<function name=", "</function>", "minicpm5")),
    (("[TOOL_CALLS]",), CallForm("[TOOL_CALLS]", "", "mistral")),
    (("<atem:function_calls>",), CallForm("<atem:function_calls>", "</atem:function_calls>", "muse_spark")),
)


def find_form(template: str) -> CallForm:
    """Return the form in which a template writes calls; Hermes' where it is none that is known."""
    for needles, form in _KNOWN:
        if all(needle in template for needle in needles):
            return form
    return HERMES


def _parser(name: str) -> Callable[[str, list[Tool]], Any]:
    """Return one of mlx-lm's parsers."""
    parse: Callable[[str, list[Tool]], Any] = importlib.import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call
    return parse


def _call(item: object) -> RawCall | None:
    """Return what a parser gave as a call, None where it is not one."""
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(name, str):
        return None
    arguments = item.get("arguments", item.get("parameters", {}))
    return RawCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
