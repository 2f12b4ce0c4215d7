"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from pie_mlx.models.constrained import Constraint
from pie_mlx.models.tool_calls import HERMES
from pie_mlx.server.answers import Answering, check_size, new_id, respond, sampling_of
from pie_mlx.server.bodies import ChatBody, Function, ToolChoice, read
from pie_mlx.server.constrained import naming
from pie_mlx.server.errors import BadRequestError, TooLargeError
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.generation import Ask, Usage
from pie_mlx.server.prompting import chat_prompt, offered_functions
from pie_mlx.server.state import ServerState
from pie_mlx.server.tools import CallSplitter
from pie_mlx.server.writing import Delta, TokenLogprob, Writing


async def chat_completions(state: ServerState, exchange: Exchange) -> None:
    """Answer a conversation.

    Raises:
        PieError: the body, the model's template, the engine or a limit refused it.
    """
    body = read(ChatBody, exchange.body)
    state.check_model(body.model)
    # Templates and grammars may take a while, which other clients must not notice.
    answering = await asyncio.to_thread(_prepare, state, body)
    await respond(state, exchange, answering)


def _prepare(state: ServerState, body: ChatBody) -> Answering:
    """Turn a body into what is asked of the engine, and how its answer is told."""
    settings, tokenizer = state.settings, state.tokenizer
    if len(body.messages) > settings.max_messages:
        raise TooLargeError("messages", settings.max_messages)
    if len(body.tools or ()) > settings.max_tools:
        raise TooLargeError("tools", settings.max_tools)
    max_tokens = check_size(state, body, 1, body.max_completion_tokens or body.max_tokens)
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("it needs logprobs to be true", "top_logprobs")
    functions = offered_functions(body)
    constraint = _constraint(state, body, functions)
    # What is held to a grammar cannot reason first.
    thinking = False if constraint is not None and tokenizer.markers is not None else body.thinking
    prompt = chat_prompt(tokenizer, body, functions, thinking=thinking)
    ask = Ask(
        prompts=(prompt,),
        num_answers=body.n or 1,
        max_tokens=max_tokens,
        sampling=sampling_of(state, body, body.top_logprobs or 0),
        stop=body.stops,
        constraint=constraint,
        name="chat",
    )
    writings = tuple(
        Writing(
            tokenizer,
            starts_in_thinking=prompt.starts_in_thinking,
            calls=_calls(state, body, functions),
            wants_logprobs=bool(body.logprobs),
        )
        for _ in range(ask.num_choices)
    )
    return Answering(ask, writings, ChatForm(state, wants_logprobs=bool(body.logprobs)), body)


def _calls(state: ServerState, body: ChatBody, functions: Sequence[Function]) -> CallSplitter | None:
    """Return the reader of one answer's calls, None where there is nothing to call."""
    if not functions:
        return None
    tokenizer = state.tokenizer
    # The grammar of a call that must be made, and the text that tells tools to other templates, are Hermes'.
    form = tokenizer.call_form if tokenizer.takes_tools and not _must_call(body) else HERMES
    return CallSplitter(functions, form, max_calls=1 if body.parallel_tool_calls is False else None)


def _must_call(body: ChatBody) -> bool:
    """Whether the answer has to be a call."""
    return body.tool_choice == "required" or isinstance(body.tool_choice, ToolChoice)


def _constraint(state: ServerState, body: ChatBody, functions: Sequence[Function]) -> Constraint | None:
    """Return what the answer is held to, None where it is free."""
    wanted, choice = body.response_format, body.tool_choice
    is_formatted = wanted is not None and wanted.type != "text"
    must_call = _must_call(body)
    if is_formatted and must_call:
        raise BadRequestError("an answer cannot be both a call and a formatted text", "response_format")
    if must_call:
        chosen = [f for f in functions if not isinstance(choice, ToolChoice) or f.name == choice.function.name]
        with naming("tools"):
            return state.grammars.of_tool_call([(f.name, f.parameters) for f in chosen])
    if wanted is None or not is_formatted:
        return None
    if wanted.type == "json_object":
        with naming("response_format"):
            return state.grammars.of_schema({"type": "object"})
    if wanted.json_schema is None:
        raise BadRequestError("there is no schema", "response_format.json_schema")
    with naming("response_format.json_schema.schema"):
        return state.grammars.of_schema(wanted.json_schema.schema_)


class ChatForm:
    """The protocol's ``chat.completion`` and ``chat.completion.chunk``."""

    def __init__(self, state: ServerState, *, wants_logprobs: bool) -> None:
        """Begin an answer with an id of its own."""
        self._tokenizer = state.tokenizer
        self._model = state.model
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._wants_logprobs = wants_logprobs
        self._num_calls: dict[int, int] = {}

    def opening(self, choice: int) -> dict[str, object] | None:
        """Return the chunk that names the role."""
        return self._chunk([self._choice(choice, {"role": "assistant", "content": ""}, None, None)])

    def chunk(self, choice: int, delta: Delta, finish_reason: str | None) -> dict[str, object]:
        """Return a chunk with what is new."""
        told: dict[str, object] = {}
        if delta.reasoning:
            told["reasoning_content"] = delta.reasoning
        if delta.text:
            told["content"] = delta.text
        if delta.calls:
            first = self._num_calls.get(choice, 0)
            self._num_calls[choice] = first + len(delta.calls)
            told["tool_calls"] = [call.to_json(first + at) for at, call in enumerate(delta.calls)]
        return self._chunk([self._choice(choice, told, self._logprobs(delta.tokens), finish_reason)])

    def usage_chunk(self, usage: Usage) -> dict[str, object]:
        """Return the chunk without choices that ends a stream."""
        return {**self._chunk([]), "usage": usage.to_json()}

    def whole(self, writings: Sequence[Writing], usage: Usage) -> dict[str, object]:
        """Return the whole answer."""
        choices = []
        for index, writing in enumerate(writings):
            whole = writing.whole
            message: dict[str, object] = {"role": "assistant", "content": whole.text}
            if whole.reasoning:
                message["reasoning_content"] = whole.reasoning
            if whole.calls:
                message |= {"content": whole.text or None, "tool_calls": [call.to_json() for call in whole.calls]}
            logprobs = self._logprobs(whole.tokens)
            reason = writing.finish_reason
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        return {**self._head("chat.completion"), "choices": choices, "usage": usage.to_json()}

    def _head(self, kind: str) -> dict[str, object]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return {**self._head("chat.completion.chunk"), "choices": choices}

    def _choice(
        self, index: int, delta: dict[str, object], logprobs: object, finish_reason: str | None
    ) -> dict[str, object]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, object] | None:
        """Return tokens with their log-probabilities, None where nobody asked."""
        if not self._wants_logprobs:
            return None
        content = [
            {**self._token(t.token, t.logprob), "top_logprobs": [self._token(*other) for other in t.top]}
            for t in tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, object]:
        text, raw = self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}


def finite(logprob: float) -> float:
    """Return a log-probability that JSON can say: that of an impossible token is -inf."""
    return max(logprob, -9999.0)
