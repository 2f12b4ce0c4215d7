"""Chat templates: a conversation becomes text, and then ids that no content can forge.

Content is rendered by the template like any other text, but whatever in it imitates a control token is
first broken by a character that occurs nowhere else; after rendering, the broken pieces are encoded as
plain text and everything else as the template meant it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, NotRequired, Protocol, TypedDict, TypeVar

from pie_mlx.errors import TemplateError
from pie_mlx.models.reasoning import ThinkMarkers, starts_in_thinking

if TYPE_CHECKING:
    from jinja2 import Template

_NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_FOLDED = "the model's chat template has no system role: the system text was put before the first user message"


T = TypeVar("T")


class Message(TypedDict):
    """One turn of a conversation; calls and their results only for a template that takes tools."""

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class Encode(Protocol):
    """Text to ids; ``special`` reads control tokens in it."""

    def __call__(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of ``text``."""
        ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to be rendered."""

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    thinking: bool | None = None
    """Whether the model may reason first; None leaves it to the template."""
    markers: ThinkMarkers | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    """Definitions of the tools that the model may call, as the protocol writes them."""


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as text and ids."""

    text: str
    ids: tuple[int, ...]
    notices: tuple[str, ...]
    """What was changed so that the template takes the messages, for the user to see."""
    starts_in_thinking: bool
    """Whether the model's next token already is reasoning."""


def read_template(config: Mapping[str, Any]) -> str | None:
    """Return the chat template of a ``tokenizer_config``: the only one, or the one named "default"."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default", next(iter(named.values()), None))
    return template if isinstance(template, str) and template.strip() else None


class _RefusedError(Exception):
    """The template called ``raise_exception``."""


class ChatTemplate:
    """One model's compiled chat template."""

    def __init__(self, model: str, source: str, roles: Mapping[str, str]) -> None:
        """Compile ``source`` in a sandbox; ``roles`` are the special tokens by name (``bos_token`` …).

        Raises:
            TemplateError: the template is not valid.
        """
        self._model = model
        self._roles = dict(roles)
        self._template = _compile(model, source)
        self.takes_tools = _takes_tools(source)
        """Whether it tells the model of tools, and has a place for calls and their results."""

    @staticmethod
    def missing(model: str) -> TemplateError:
        """Return the error for a model that has no template."""
        return TemplateError(
            model,
            "the model has no chat template (it is a base model)",
            "use it for raw completion, or choose an instruct model (pie-mlx models)",
        )

    def render(self, conversation: Conversation, controls: Collection[str], encode: Encode) -> RenderedChat:
        """Render and encode ``conversation``; nothing in its contents becomes one of ``controls``.

        Raises:
            TemplateError: the template refuses the messages, also with the system text folded in.
        """
        _check_messages(self._model, conversation.messages)
        guard = _Guard(conversation, controls)
        guarded = guard.break_up(conversation)
        text, notices = self._text_folding_system(guarded)
        plain = guard.restore(text)
        return RenderedChat(
            text=plain,
            ids=tuple(guard.encode(text, encode)),
            notices=notices,
            starts_in_thinking=starts_in_thinking(guard.trusted(text), conversation.markers),
        )

    def _text_folding_system(self, conversation: Conversation) -> tuple[str, tuple[str, ...]]:
        """Render; where the template refuses or drops the system text, put it into the first user turn."""
        system = conversation.messages[0]["content"] if conversation.messages[0]["role"] == "system" else None
        try:
            text = self._text(conversation)
        except TemplateError:
            folded = fold_system(conversation.messages)
            if folded is None:
                raise
            return self._text(replace(conversation, messages=folded)), (_FOLDED,)
        folded = fold_system(conversation.messages)
        if system is None or folded is None or system.strip() in text:
            return text, ()
        return self._text(replace(conversation, messages=folded)), (_FOLDED,)

    def _text(self, conversation: Conversation) -> str:
        from jinja2 import TemplateError as JinjaError

        variables: dict[str, Any] = {
            **self._roles,
            "messages": [dict(message) for message in conversation.messages],
            "add_generation_prompt": conversation.add_generation_prompt,
            "tools": [dict(tool) for tool in conversation.tools] or None,
            "documents": None,
        }
        if conversation.thinking is not None:
            variables |= {"enable_thinking": conversation.thinking, "thinking": conversation.thinking}
        try:
            return self._template.render(**variables)
        except _RefusedError as error:
            raise TemplateError(self._model, f"the chat template refuses these messages: {error}") from error
        except (JinjaError, TypeError, ValueError, KeyError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateError(self._model, f"the chat template failed: {error}") from error


def fold_system(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """Return the messages with the leading system text put before the first user text, None if there is none."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    first: Message = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return (first, *messages[2:])


def _check_messages(model: str, messages: Sequence[Message]) -> None:
    """Refuse an empty conversation and a message without text."""
    if not messages:
        raise TemplateError(model, "the conversation has no message")
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise TemplateError(model, f"message {index} needs a role and a content, both text")
        if not message["role"].isidentifier():
            raise TemplateError(model, f"message {index} has the role {message['role']!r}, which is not a plain word")


class _Guard:
    """Breaks imitations of control tokens in contents, and finds them again in the rendered text."""

    def __init__(self, conversation: Conversation, controls: Collection[str]) -> None:
        contents = "".join(_texts([conversation.messages, conversation.tools]))
        self._breaker = next((sign for sign in _NONCHARACTERS if sign not in contents), "".join(_NONCHARACTERS))
        self._controls = tuple(sorted((text for text in controls if len(text) > 1), key=len, reverse=True))
        self._markers = conversation.markers
        broken = "|".join(re.escape(self._broken(text)) for text in self._controls)
        self._pattern = re.compile(broken) if broken else None

    def _broken(self, text: str) -> str:
        return text[0] + self._breaker + text[1:]

    def break_up(self, conversation: Conversation) -> Conversation:
        """Return the conversation with every imitation broken.

        The model's own think markers stay whole in its own turns: templates look for them there.
        """
        return replace(
            conversation,
            messages=tuple(self._guarded(message) for message in conversation.messages),
            tools=self._broken_in(conversation.tools),
        )

    def _guarded(self, message: Message) -> Message:
        own = self._markers.pair if self._markers is not None and message["role"] == "assistant" else ()
        # The copy keeps keys beyond role and content: templates read tool calls and names.
        guarded = self._broken_in(message)
        guarded["role"] = message["role"]
        guarded["content"] = self._broken_in(message["content"], own)
        return guarded

    def _broken_in(self, value: T, own: Collection[str] = ()) -> T:
        """Return a copy of nested JSON in which every imitation but ``own`` is broken, in keys too."""
        broken: Any = value
        if isinstance(value, str):
            for text in self._controls:
                if text in broken and text not in own:
                    broken = broken.replace(text, self._broken(text))
        elif isinstance(value, Mapping):
            broken = {self._broken_in(key, own): self._broken_in(item, own) for key, item in value.items()}
        elif isinstance(value, list | tuple):
            broken = type(value)(self._broken_in(item, own) for item in value)
        return broken  # type: ignore[no-any-return]

    def restore(self, text: str) -> str:
        """Return the rendered text as the user wrote it."""
        return text.replace(self._breaker, "")

    def trusted(self, text: str) -> str:
        """Return the rendered text without the imitations."""
        return text if self._pattern is None else self._pattern.sub("", text)

    def encode(self, text: str, encode: Encode) -> list[int]:
        """Encode the imitations as plain text, and all else with its control tokens."""
        if self._pattern is None or self._breaker not in text:
            return encode(text, special=True)
        ids: list[int] = []
        at = 0
        for match in self._pattern.finditer(text):
            ids += encode(text[at : match.start()], special=True)
            ids += encode(self.restore(match[0]), special=False)
            at = match.end()
        return ids + encode(text[at:], special=True)


def _texts(value: object) -> Iterator[str]:
    """Yield every text in nested JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _takes_tools(source: str) -> bool:
    """Whether a template reads the variable ``tools``, earlier calls, and the role of their results."""
    return all(
        re.search(pattern, source)
        for pattern in (r"\btools\b", r"\btool_calls\b", r"""["'](tool|tool_response|ipython)["']""")
    )


def _compile(model: str, source: str) -> Template:
    """Compile a template in the sandbox, with the functions that templates expect."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    # {% generation %} marks the model's own text for training; it renders as what it encloses.
    source = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise TemplateError(model, f"the chat template is not valid (line {error.lineno}): {error.message}") from error


def _refuse(reason: str) -> NoReturn:
    raise _RefusedError(reason)


def _now(form: str) -> str:
    return datetime.now(tz=UTC).astimezone().strftime(form)


def _to_json(value: object, *, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Write JSON as templates expect it: characters as they are, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
