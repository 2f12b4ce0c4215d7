"""The two completions: what is common to them, and the protocol's forms of each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from pie_mlx.engine import Completion, Piece
from pie_mlx.errors import InvalidParameter
from pie_mlx.sampling import Sampling
from pie_mlx.server.admission import Gate
from pie_mlx.server.bodies import Sampled
from pie_mlx.server.errors import DeadlineError, TooLargeError
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.generation import Ask, Generation, Usage
from pie_mlx.server.logs import log_text
from pie_mlx.server.state import ServerState
from pie_mlx.server.writing import Delta, Writing

Batch = list[tuple[int, Piece | Completion]]
_MASK = (1 << 64) - 1


class Form(Protocol):
    """How one endpoint tells its answers."""

    def opening(self, choice: int) -> dict[str, object] | None:
        """Return the chunk that opens a choice in a stream, None where there is none."""
        ...

    def chunk(self, choice: int, delta: Delta, finish_reason: str | None) -> dict[str, object]:
        """Return a chunk of a stream."""
        ...

    def usage_chunk(self, usage: Usage) -> dict[str, object]:
        """Return the last chunk of a stream, where the usage was asked for."""
        ...

    def whole(self, writings: Sequence[Writing], usage: Usage) -> dict[str, object]:
        """Return the whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Answering:
    """One request to be answered: what is asked, how it is read, how it is told."""

    ask: Ask
    writings: tuple[Writing, ...]
    form: Form
    body: Sampled


def new_id(prefix: str) -> str:
    """Return an id that nobody can guess."""
    return f"{prefix}-{secrets.token_hex(12)}"


def client_key(exchange: Exchange, user: str | None) -> str:
    """Return the name under which a client takes turns."""
    return f"user {user}" if user else f"address {exchange.client}"


@asynccontextmanager
async def turn(gate: Gate, exchange: Exchange, user: str | None, *, streams: bool) -> AsyncIterator[None]:
    """Wait for a client's turn, and hold its place while inside; a stream shows meanwhile that it lives.

    Raises:
        PieError: the gate is full or closed.
    """
    async with AsyncExitStack() as held:
        async with exchange.patient(streams=streams):
            await held.enter_async_context(gate.place(client_key(exchange, user)))
        yield


def sampling_of(state: ServerState, body: Sampled, num_logprobs: int) -> Sampling:
    """Return the sampling of a request; what it leaves open is the server's default, and the seed is drawn."""
    defaults = state.settings
    return Sampling(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=defaults.top_k if body.top_k is None else body.top_k,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        seed=secrets.randbits(63) if body.seed is None else body.seed & _MASK,
        num_logprobs=num_logprobs,
    )


def check_size(state: ServerState, body: Sampled, num_prompts: int, max_tokens: int | None) -> int:
    """Refuse what is over a limit; return the tokens of an answer.

    Raises:
        TooLargeError: too many answers.
        InvalidParameter: an answer could be longer than the model's context.
    """
    limit = state.settings.max_choices
    if num_prompts * (body.n or 1) > limit:
        raise TooLargeError("answers (prompts times n)", limit)
    context = state.engine.facts.context_tokens
    if max_tokens is not None and max_tokens > context:
        raise InvalidParameter("max_tokens", max_tokens, f"from 1 to {context}, the model's context")
    return min(state.settings.default_max_tokens, context) if max_tokens is None else max_tokens


async def respond(state: ServerState, exchange: Exchange, answering: Answering) -> None:
    """Wait for a place, generate, and tell the answer: whole, or as a stream.

    A stream begins with its first token, so that a refusal before it still has its own status.

    Raises:
        PieError: the engine, the gate or the deadline ended it.
    """
    body = answering.body
    limit_s = state.deadline_s(body.deadline_s)
    timer = asyncio.get_running_loop().call_later(limit_s, exchange.abort, DeadlineError(limit_s))
    teller = _Stream(exchange, answering) if body.stream else None
    try:
        async with turn(state.gate, exchange, body.user, streams=bool(body.stream)):
            with Generation(state.engine, state.pump, answering.ask) as generation:
                generation.start()
                while not generation.is_over:
                    batch = await generation.next(state.settings.heartbeat_s)
                    await _take(state, answering, batch, teller)
        _note(state, exchange, answering, generation.usage)
        if teller is not None:
            await teller.finish(generation.usage)
        else:
            await exchange.answer(answering.form.whole(answering.writings, generation.usage))
    finally:
        timer.cancel()


async def _take(state: ServerState, answering: Answering, batch: Batch, teller: _Stream | None) -> None:
    """Read what has come, and tell it where it is streamed; many pieces of a choice are told as one."""
    deltas: dict[int, Delta] = {}
    for choice, delivery in batch:
        writing = answering.writings[choice]
        deltas.setdefault(choice, Delta()).add(writing.take(delivery))
        if isinstance(delivery, Completion):
            assert writing.finish_reason is not None, "a completion has a reason"
            state.metrics.count_completion(delivery, writing.finish_reason)
    if teller is not None:
        await teller.tell(deltas)


class _Stream:
    """Tells answers chunk by chunk."""

    def __init__(self, exchange: Exchange, answering: Answering) -> None:
        self._exchange = exchange
        self._answering = answering
        self._opened: set[int] = set()

    async def tell(self, deltas: dict[int, Delta]) -> None:
        """Send what is new of each choice; a comment where nothing is."""
        await self._exchange.begin_stream()
        if not deltas:
            await self._exchange.comment()
        form = self._answering.form
        for choice, delta in deltas.items():
            if choice not in self._opened:
                self._opened.add(choice)
                if (opening := form.opening(choice)) is not None:
                    await self._exchange.event(opening)
            reason = self._answering.writings[choice].finish_reason
            if delta or reason is not None:
                await self._exchange.event(form.chunk(choice, delta, reason))

    async def finish(self, usage: Usage) -> None:
        """Send the usage where it was asked for, and end."""
        if self._answering.body.has_usage_event:
            await self._exchange.event(self._answering.form.usage_chunk(usage))
        await self._exchange.end_stream()


def _note(state: ServerState, exchange: Exchange, answering: Answering, usage: Usage) -> None:
    """Count an exchange and note it for the log."""
    state.metrics.count_prompt(usage.prompt, usage.cached)
    exchange.notes |= {"prompt": usage.prompt, "cached": usage.cached, "completion": usage.completion}
    for prompt in answering.ask.prompts:
        log_text(exchange, "prompt", state.tokenizer.decode(prompt.ids) if state.settings.logs_prompts else "")
    for writing in answering.writings:
        log_text(exchange, "answer", writing.whole.text)
