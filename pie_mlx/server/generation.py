"""Answers from the engine for one exchange: contexts, forks and requests, opened and closed together."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from pie_mlx.engine import Completion, Context, Engine, Piece, Request
from pie_mlx.errors import PieError
from pie_mlx.models.constrained import Constraint
from pie_mlx.sampling import Sampling, derive_seed
from pie_mlx.server.bridge import Delivery, Inbox, Pump
from pie_mlx.server.prompting import Prompt

_PROMPT_MARK = -1
"""Deliveries below zero are of prompts: -1 of the first, -2 of the second …"""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked of the engine: ``num_answers`` to each prompt."""

    prompts: tuple[Prompt, ...]
    num_answers: int
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    name: str = "request"

    @property
    def num_choices(self) -> int:
        """Answers in all."""
        return len(self.prompts) * self.num_answers

    def prompt_of(self, choice: int) -> Prompt:
        """Return the prompt that an answer belongs to."""
        return self.prompts[choice // self.num_answers]


@dataclass(slots=True)
class Usage:
    """Tokens of one exchange; a prompt counts once, however many answers it has."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the usage as the protocol has it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Generation:
    """One ask while it runs. Leaving the ``with`` ends every request and closes every context at once."""

    def __init__(self, engine: Engine, pump: Pump, ask: Ask) -> None:
        """Prepare; nothing is opened yet."""
        self._engine = engine
        self._pump = pump
        self._ask = ask
        self._opened = ExitStack()
        self._inbox: Inbox[tuple[int, Delivery]] = Inbox()
        self._cached_before: dict[int, int] = {}
        self._roots: list[Context] = []
        self._num_left = ask.num_choices
        self.usage = Usage(prompt=sum(len(prompt.ids) for prompt in ask.prompts))

    def __enter__(self) -> Self:
        """Return the generation itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything."""
        self._opened.close()

    def start(self) -> None:
        """Open a context for each prompt, and submit; a prompt with several answers is computed once, then forked.

        Raises:
            PieError: the engine refused one of them.
        """
        ask = self._ask
        self._roots = [self._open(self._engine.context(prompt.ids, name=ask.name)) for prompt in ask.prompts]
        for at, root in enumerate(self._roots):
            if ask.num_answers == 1:
                self._submit(root, at)
            else:
                self._follow(root.prefill(), _PROMPT_MARK - at)

    @property
    def is_over(self) -> bool:
        """Whether every answer is complete."""
        return self._num_left == 0

    async def next(self, patience_s: float) -> list[tuple[int, Piece | Completion]]:
        """Return what has come, by choice; nothing where nothing came within ``patience_s``.

        Raises:
            PieError: the typed error of the first request that failed.
        """
        try:
            async with asyncio.timeout(patience_s):
                arrived = await self._inbox.take()
        except TimeoutError:
            return []
        batch: list[tuple[int, Piece | Completion]] = []
        for choice, delivery in arrived:
            if isinstance(delivery, PieError):
                raise delivery
            if choice < 0:
                self._answer(_PROMPT_MARK - choice, delivery)
                continue
            if isinstance(delivery, Completion):
                self._num_left -= 1
                self._count(choice, delivery)
            batch.append((choice, delivery))
        return batch

    def _answer(self, at: int, prefilled: Piece | Completion) -> None:
        """Fork a prompt that has been computed; note which of its tokens were there already."""
        if not isinstance(prefilled, Completion):
            return
        self._cached_before[at] = prefilled.cached_tokens
        for index in range(self._ask.num_answers):
            fork = self._open(self._roots[at].fork(name=f"{self._ask.name} answer {index + 1}"))
            self._submit(fork, at * self._ask.num_answers + index)

    def _count(self, choice: int, done: Completion) -> None:
        """Count the tokens of a completion."""
        self.usage.completion += done.completion_tokens
        if choice % self._ask.num_answers == 0:
            before = self._cached_before.get(choice // self._ask.num_answers)
            self.usage.cached += done.cached_tokens if before is None else before

    def _open(self, context: Context) -> Context:
        """See that a context is closed at the end."""
        return self._opened.enter_context(context)

    def _submit(self, context: Context, choice: int) -> None:
        """Ask for one answer; the first has the request's own seed, so that it equals an answer alone."""
        ask = self._ask
        index = choice % ask.num_answers
        seed = ask.sampling.seed if index == 0 else derive_seed(ask.sampling.seed, index)
        request = context.submit(
            max_tokens=ask.max_tokens,
            sampling=replace(ask.sampling, seed=seed),
            stop=ask.stop,
            constraint=None if ask.constraint is None else ask.constraint.copy(),
        )
        self._follow(request, choice)

    def _follow(self, request: Request, at: int) -> None:
        """Have a request's deliveries carried into the inbox."""
        inbox = self._inbox
        self._opened.callback(self._pump.forget, request)
        self._pump.follow(request, lambda delivery: inbox.put((at, delivery)))
