"""Tools: how they are told to a model whose template has no place for them, and how calls are read out of its text.

Where the template takes tools, it tells them, and the model's calls have the form that the template writes. Otherwise
the form is Hermes': the tools stand as JSON in the system text. In every form an answer that is a call as JSON and
nothing else is a call too. What cannot be read as a call of a known tool stays text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.models.reasoning import held_back
from pie_mlx.models.tool_calls import HERMES, CallForm, RawCall, Tool
from pie_mlx.server.bodies import CalledTool, Function

_PREAMBLE = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made; ``arguments`` is JSON as text."""

    id: str
    name: str
    arguments: str

    def to_json(self, index: int | None = None) -> dict[str, object]:
        """Return the call as the protocol has it; with its index inside a stream."""
        call: dict[str, object] = {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }
        return call if index is None else {"index": index, **call}


def definition(function: Function) -> dict[str, object]:
    """Return a function as templates expect a tool."""
    return {"type": "function", "function": function.model_dump(exclude_none=True)}


def tools_text(functions: Sequence[Function]) -> str:
    """Return the system text that tells the model its tools."""
    tools = [json.dumps(definition(function), ensure_ascii=False) for function in functions]
    return _PREAMBLE.format(tools="\n".join(tools))


def calls_text(calls: Sequence[CalledTool]) -> str:
    """Return earlier calls as the model wrote them."""
    parts = []
    for call in calls:
        try:
            arguments: object = json.loads(call.function.arguments)
        except ValueError:
            arguments = call.function.arguments
        body = json.dumps({"name": call.function.name, "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class SplitCalls:
    """A piece of model text, calls told apart."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallSplitter:
    """Splits streamed text into text and calls; a marker may arrive in any number of pieces."""

    def __init__(self, functions: Sequence[Function], form: CallForm = HERMES, *, max_calls: int | None = None) -> None:
        """Look for calls of ``functions``; calls beyond ``max_calls`` are dropped."""
        self._names = frozenset(function.name for function in functions)
        self._tools: list[Tool] = [definition(function) for function in functions]
        self._form = form
        self._left = max_calls
        self._held = ""
        self._has_spoken = False

    def push(self, text: str) -> SplitCalls:
        """Take the next piece; return what is certain."""
        return self._split(self._held + text, final=False)

    def finish(self) -> SplitCalls:
        """Return what was held back: a call that was not closed, or text after all."""
        return self._split(self._held, final=True)

    def _split(self, text: str, *, final: bool) -> SplitCalls:
        start, end_marker = self._form.start, self._form.end
        self._held = ""
        plain: list[str] = []
        calls: list[ToolCall] = []
        while (at := text.find(start)) >= 0:
            end = text.find(end_marker, at + len(start)) if end_marker else -1
            if end < 0 and not final:
                break
            stop = len(text) if end < 0 else end
            close = len(text) if end < 0 else end + len(end_marker)
            found = self._known(self._form.read(text[at + len(start) : stop], self._tools))
            plain.append(text[:at] if found else text[:close])
            calls += found
            text = text[close:]
        keep = len(text) - at if at >= 0 else 0 if final else held_back(text, (start,))
        plain.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return self._tell("".join(plain), calls, final=final)

    def _tell(self, text: str, calls: list[ToolCall], *, final: bool) -> SplitCalls:
        """Return text and calls; an answer that begins as an object is held: it may be a call without markers."""
        if not self._has_spoken and not calls and text.lstrip().startswith("{"):
            if not final:
                self._held = text + self._held
                return SplitCalls()
            calls = self._known(HERMES.read(text, self._tools))
            text = "" if calls else text
        # The blank lines around a call belong to it.
        if not text.strip() and (calls or self._held or not self._has_spoken) and not (final and not calls):
            if not calls:
                self._held = text + self._held
            text = ""
        self._has_spoken = self._has_spoken or bool(text.strip()) or bool(calls)
        return SplitCalls(text, self._first(calls))

    def _known(self, raw: Sequence[RawCall]) -> list[ToolCall]:
        """Return calls with ids of their own, none where one of them is of a function that is not known."""
        if any(call.name not in self._names for call in raw):
            return []
        return [ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments) for call in raw]

    def _first(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Return as many calls as may still be made."""
        taken = tuple(calls if self._left is None else calls[: self._left])
        if self._left is not None:
            self._left -= len(taken)
        return taken
