"""``POST /v1/completions``: raw text goes on, without a chat template."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from pie_mlx.server.answers import Answering, check_size, new_id, respond, sampling_of
from pie_mlx.server.bodies import CompletionBody, read
from pie_mlx.server.chat import finite
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.generation import Ask, Usage
from pie_mlx.server.prompting import completion_prompts
from pie_mlx.server.state import ServerState
from pie_mlx.server.writing import Delta, TokenLogprob, Writing


async def completions(state: ServerState, exchange: Exchange) -> None:
    """Continue one or more prompts.

    Raises:
        PieError: the body, the engine or a limit refused it.
    """
    body = read(CompletionBody, exchange.body)
    state.check_model(body.model)
    answering = await asyncio.to_thread(_prepare, state, body)
    await respond(state, exchange, answering)


def _prepare(state: ServerState, body: CompletionBody) -> Answering:
    """Turn a body into what is asked of the engine, and how its answer is told."""
    prompts = completion_prompts(state.tokenizer, body, state.settings)
    max_tokens = check_size(state, body, len(prompts), body.max_tokens)
    wants_logprobs = body.logprobs is not None
    ask = Ask(
        prompts=tuple(prompts),
        num_answers=body.n or 1,
        max_tokens=max_tokens,
        sampling=sampling_of(state, body, body.logprobs or 0),
        stop=body.stops,
        name="completion",
    )
    writings = tuple(
        Writing(state.tokenizer, is_chat=False, wants_logprobs=wants_logprobs) for _ in range(ask.num_choices)
    )
    return Answering(ask, writings, CompletionForm(state, wants_logprobs=wants_logprobs), body)


class CompletionForm:
    """The protocol's ``text_completion``, whole and in chunks."""

    def __init__(self, state: ServerState, *, wants_logprobs: bool) -> None:
        """Begin an answer with an id of its own."""
        self._tokenizer = state.tokenizer
        self._head: dict[str, object] = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": state.model,
        }
        self._wants_logprobs = wants_logprobs
        self._offsets: dict[int, int] = {}

    def opening(self, choice: int) -> dict[str, object] | None:
        """Return nothing: there is no role to name."""
        return None

    def chunk(self, choice: int, delta: Delta, finish_reason: str | None) -> dict[str, object]:
        """Return a chunk with what is new."""
        return {**self._head, "choices": [self._choice(choice, delta, finish_reason)]}

    def usage_chunk(self, usage: Usage) -> dict[str, object]:
        """Return the chunk without choices that ends a stream."""
        return {**self._head, "choices": [], "usage": usage.to_json()}

    def whole(self, writings: Sequence[Writing], usage: Usage) -> dict[str, object]:
        """Return the whole answer."""
        choices = [self._choice(index, writing.whole, writing.finish_reason) for index, writing in enumerate(writings)]
        return {**self._head, "choices": choices, "usage": usage.to_json()}

    def _choice(self, index: int, delta: Delta, finish_reason: str | None) -> dict[str, object]:
        logprobs = self._logprobs(index, delta.tokens) if self._wants_logprobs else None
        return {"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, choice: int, tokens: Sequence[TokenLogprob]) -> dict[str, object]:
        """Return tokens, their log-probabilities, and where each begins in the answer's text."""
        text = self._tokenizer.token_text
        texts = [text(t.token) for t in tokens]
        offsets = []
        at = self._offsets.get(choice, 0)
        for piece in texts:
            offsets.append(at)
            at += len(piece)
        self._offsets[choice] = at
        return {
            "tokens": texts,
            "token_logprobs": [finite(t.logprob) for t in tokens],
            "top_logprobs": [{text(token): finite(value) for token, value in t.top} for t in tokens],
            "text_offset": offsets,
        }
