"""Tools: how they are told to the model, and how its calls are read out of its text.

The form is Hermes': the tools stand as JSON in the system text, and a call is ``<tool_call>`` around
``{"name": …, "arguments": {…}}``; an answer that is such an object and nothing else is a call too. What cannot be read
as a call of a known tool stays text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.models.reasoning import held_back
from pie_mlx.server.bodies import CalledTool, Function

START, END = "<tool_call>", "</tool_call>"

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


def tools_text(functions: Sequence[Function]) -> str:
    """Return the system text that tells the model its tools."""
    tools = [
        json.dumps({"type": "function", "function": f.model_dump(exclude_none=True)}, ensure_ascii=False)
        for f in functions
    ]
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

    def __init__(self, names: Sequence[str]) -> None:
        """Look for calls of the functions ``names``."""
        self._names = frozenset(names)
        self._held = ""
        self._has_spoken = False

    def push(self, text: str) -> SplitCalls:
        """Take the next piece; return what is certain."""
        return self._split(self._held + text, final=False)

    def finish(self) -> SplitCalls:
        """Return what was held back: a call that was not closed, or text after all."""
        return self._split(self._held, final=True)

    def _split(self, text: str, *, final: bool) -> SplitCalls:
        self._held = ""
        plain: list[str] = []
        calls: list[ToolCall] = []
        while (at := text.find(START)) >= 0:
            end = text.find(END, at)
            if end < 0 and not final:
                break
            close = len(text) if end < 0 else end + len(END)
            found = self._read(text[at + len(START) : close].removesuffix(END))
            plain.append(text[:at] if found else text[:close])
            calls += found
            text = text[close:]
        keep = len(text) - at if at >= 0 else 0 if final else held_back(text, (START,))
        plain.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return self._tell("".join(plain), calls, final=final)

    def _tell(self, text: str, calls: list[ToolCall], *, final: bool) -> SplitCalls:
        """Return text and calls; an answer that begins as an object is held: it may be a call without markers."""
        if not self._has_spoken and not calls and text.lstrip().startswith("{"):
            if not final:
                self._held = text + self._held
                return SplitCalls()
            calls = self._read(text)
            text = "" if calls else text
        # The blank lines around a call belong to it.
        if not text.strip() and (calls or self._held or not self._has_spoken) and not (final and not calls):
            if not calls:
                self._held = text + self._held
            text = ""
        self._has_spoken = self._has_spoken or bool(text.strip()) or bool(calls)
        return SplitCalls(text, tuple(calls))

    def _read(self, body: str) -> list[ToolCall]:
        """Return the calls that a text is, none where it is not one or more calls of known functions."""
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            return []
        found = parsed if isinstance(parsed, list) else [parsed]
        calls = [call for item in found if (call := self._call(item)) is not None]
        return calls if len(calls) == len(found) else []

    def _call(self, item: object) -> ToolCall | None:
        """Return a parsed object as a call of a known function, None where it is not one."""
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(name, str) or name not in self._names:
            return None
        arguments = item.get("arguments", item.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(f"call_{secrets.token_hex(12)}", name, text)
