"""From a body to tokens: messages through the chat template, which tells tools and calls where it can."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.models.tokenizer import Message, Tokenizer
from pie_mlx.server.bodies import CalledTool, ChatBody, ChatMessage, CompletionBody, Function, ToolChoice
from pie_mlx.server.errors import BadRequestError, TooLargeError
from pie_mlx.server.settings import ServerSettings
from pie_mlx.server.tools import calls_text, definition, tools_text

_CALL_ID_LENGTH = 9
"""Templates of Mistral's models refuse ids of calls that are longer or shorter."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as tokens."""

    ids: tuple[int, ...]
    starts_in_thinking: bool = False


def offered_functions(body: ChatBody) -> list[Function]:
    """Return the functions that the model is told of, and may call.

    Raises:
        BadRequestError: ``tool_choice`` and ``tools`` contradict each other.
    """
    functions = [tool.function for tool in body.tools or ()]
    names = [function.name for function in functions]
    if len(set(names)) != len(names):
        raise BadRequestError("two functions have the same name", "tools")
    choice = body.tool_choice
    if isinstance(choice, ToolChoice) and choice.function.name not in names:
        raise BadRequestError(f"there is no function {choice.function.name!r} in tools", "tool_choice")
    if choice == "required" and not functions:
        raise BadRequestError("a call is required, but there are no tools", "tool_choice")
    return [] if choice == "none" else functions


def chat_prompt(
    tokenizer: Tokenizer, body: ChatBody, functions: Sequence[Function], *, thinking: bool | None
) -> Prompt:
    """Return the tokens of a conversation.

    Raises:
        TemplateError: the model has no chat template, or it refuses the messages.
    """
    if tokenizer.takes_tools:
        tools = [definition(function) for function in functions]
        chat = tokenizer.chat(_native(body.messages), thinking=thinking, tools=tools)
        return Prompt(chat.ids, chat.starts_in_thinking)
    messages = [_plain(message) for message in body.messages]
    if functions:
        text = tools_text(functions)
        if messages[0]["role"] == "system":
            messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
        else:
            messages.insert(0, {"role": "system", "content": text})
    chat = tokenizer.chat(messages, thinking=thinking)
    return Prompt(chat.ids, chat.starts_in_thinking)


def _native(messages: Sequence[ChatMessage]) -> list[Message]:
    """Return messages for a template that takes calls and results; a result has its function's name."""
    names = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
    native: list[Message] = []
    for message in messages:
        turn: Message = {"role": "system" if message.role == "developer" else message.role, "content": message.text}
        if message.tool_calls:
            turn["tool_calls"] = [_native_call(call) for call in message.tool_calls]
        if message.role == "tool" and message.tool_call_id is not None:
            turn["tool_call_id"] = _short(message.tool_call_id)
            turn["name"] = names.get(message.tool_call_id, "")
        native.append(turn)
    return native


def _native_call(call: CalledTool) -> dict[str, object]:
    """Return an earlier call as templates read it: arguments are an object, not its JSON."""
    try:
        arguments: object = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": _short(call.id or ""), "type": "function", "function": function}


def _short(call_id: str) -> str:
    """Return a call's id in the length that every template takes."""
    is_short = len(call_id) == _CALL_ID_LENGTH and call_id.isalnum()
    return call_id if is_short else hashlib.sha256(call_id.encode()).hexdigest()[:_CALL_ID_LENGTH]


def _plain(message: ChatMessage) -> Message:
    """Return a message in the roles that every template has."""
    if message.role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
    if message.tool_calls:
        parts = (message.text, calls_text(message.tool_calls))
        return {"role": "assistant", "content": "\n".join(part for part in parts if part)}
    return {"role": "system" if message.role == "developer" else message.role, "content": message.text}


def completion_prompts(tokenizer: Tokenizer, body: CompletionBody, settings: ServerSettings) -> list[Prompt]:
    """Return the tokens of each raw prompt.

    Raises:
        BadRequestError, TooLargeError: there is no prompt, or there are too many.
    """
    given = body.prompt
    prompts: Sequence[str | list[int]]
    if isinstance(given, str):
        prompts = [given]
    elif given and all(isinstance(item, int) for item in given):
        prompts = [[item for item in given if isinstance(item, int)]]
    else:
        prompts = [item for item in given if not isinstance(item, int)]
    if not prompts:
        raise BadRequestError("there is no prompt", "prompt")
    if len(prompts) > settings.max_choices:
        raise TooLargeError("prompts", settings.max_choices)
    return [Prompt(tuple(tokenizer.prompt_ids(p) if isinstance(p, str) else p)) for p in prompts]
