"""Tools: how they are told to the model, and how its calls are read out of its text.

The form is Hermes': the tools stand as JSON in the system text, and a call is ``<tool_call>`` around
``{"name": …, "arguments": {…}}``. Some models answer in a form of their own; where their chat template shows one that
mlx-lm can parse, its markers and its parser are used too. What cannot be read as a call of a known tool stays text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.models.reasoning import held_back
from pie_mlx.models.tool_calls import CallFormat
from pie_mlx.server.bodies import CalledTool, Function

HERMES = CallFormat("<tool_call>", "</tool_call>", json.loads)

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
        call = {
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

    def __init__(self, names: Sequence[str], formats: Sequence[CallFormat] = (HERMES,)) -> None:
        """Look for calls of the functions ``names`` in any of ``formats``."""
        self._names = frozenset(names)
        self._formats = tuple(formats)
        self._held = ""
        self._inside: CallFormat | None = None
        self._has_spoken = False

    def push(self, text: str) -> SplitCalls:
        """Take the next piece; return what is certain."""
        return self._split(self._held + text, final=False)

    def finish(self) -> SplitCalls:
        """Return what was held back: a call that was not closed, or text after all."""
        return self._split(self._held, final=True)

    def _split(self, text: str, *, final: bool) -> SplitCalls:
        plain: list[str] = []
        calls: list[ToolCall] = []
        self._held = ""
        while text:
            if self._inside is None:
                text = self._before_call(text, plain, final=final)
                if self._inside is None:
                    break
            closed = self._call_end(text, final=final)
            if closed is None:
                self._held = text
                break
            whole, text = text[:closed], text[closed:]
            self._take(whole, plain, calls)
        spoken = self._shown("".join(plain), has_calls=bool(calls))
        return self._bare(spoken, calls, final=final)

    def _before_call(self, text: str, plain: list[str], *, final: bool) -> str:
        """Move text in front of the next call to ``plain``; return the rest, from its marker on."""
        found = [(text.find(form.start), form) for form in self._formats if form.start in text]
        if found:
            at, self._inside = min(found, key=lambda place: place[0])
            plain.append(text[:at])
            return text[at:]
        keep = 0 if final else held_back(text, [form.start for form in self._formats])
        plain.append(text[: len(text) - keep])
        self._held = text[len(text) - keep :]
        return ""

    def _call_end(self, text: str, *, final: bool) -> int | None:
        """Return where the call that ``text`` begins with is over, None while it is not."""
        form = self._inside
        assert form is not None, "only a call ends"
        at = text.find(form.end, len(form.start)) if form.end else -1
        if at >= 0:
            return at + len(form.end)
        return len(text) if final else None

    def _take(self, whole: str, plain: list[str], calls: list[ToolCall]) -> None:
        """Read a call; what is none stays text."""
        form, self._inside = self._inside, None
        assert form is not None, "only a call is taken"
        body = whole[len(form.start) :].removesuffix(form.end) if form.end else whole[len(form.start) :]
        read = self._read(form, body)
        if read:
            calls += read
        else:
            plain.append(whole)

    def _read(self, form: CallFormat, body: str) -> list[ToolCall]:
        """Return the calls in the text between two markers, none where it cannot be read."""
        try:
            parsed = form.parse(body)
        except Exception:  # noqa: BLE001  mlx-lm's parsers raise whatever the model's text trips them over
            return []
        found = parsed if isinstance(parsed, list) else [parsed]
        calls = [call for item in found if (call := self._call(item)) is not None]
        return calls if len(calls) == len(found) else []

    def _call(self, item: object) -> ToolCall | None:
        """Return a parsed object as a call of a known function, None where it is not one."""
        if not isinstance(item, dict) or item.get("name") not in self._names:
            return None
        arguments = item.get("arguments", item.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return ToolCall(f"call_{secrets.token_hex(12)}", str(item["name"]), text)

    def _shown(self, text: str, *, has_calls: bool) -> str:
        """Drop the blank lines around calls."""
        if not self._has_spoken:
            text = text.lstrip() if has_calls or self._held else text
        return "" if has_calls and not text.strip() else text

    def _bare(self, text: str, calls: list[ToolCall], *, final: bool) -> SplitCalls:
        """Where the answer begins as a JSON object, hold it: it may be a call without markers."""
        begins = not self._has_spoken and not calls and text.lstrip().startswith("{")
        if begins and not final:
            self._held = text + self._held
            return SplitCalls()
        if begins and (bare := self._read(HERMES, text)):
            return SplitCalls(calls=tuple(bare))
        self._has_spoken = self._has_spoken or bool(text.strip()) or bool(calls)
        return SplitCalls(text, tuple(calls))
