"""A context as its owner holds it: a sequence of tokens whose K/V lives in the pool while it is open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from pie_mlx.engine.completion import Completion, Piece
from pie_mlx.engine.job import Allowed, GenerateGoal, LabelsGoal, LogprobsGoal
from pie_mlx.engine.request import Request
from pie_mlx.errors import InvalidParameter, UsageError
from pie_mlx.ids import ContextId
from pie_mlx.kv.snapshot import SnapshotFacts, SnapshotStore
from pie_mlx.sampling import Sampling

if TYPE_CHECKING:
    from pie_mlx.engine.engine import Engine

_Key = TypeVar("_Key")
GREEDY = Sampling()
"""Always the likeliest token."""


@dataclass(frozen=True, slots=True)
class ContextPages:
    """Pages that a context views."""

    total: int
    private: int

    @property
    def shared(self) -> int:
        """Pages that other contexts view too."""
        return self.total - self.private


class Context:
    """An open context. Close it, use it in ``with``, or drop it: each gives its pages back.

    One context runs one request at a time; fork it to run more. Forking copies no K/V and takes
    microseconds; the fork has the same tokens and goes its own way.
    """

    def __init__(self, engine: Engine, context: ContextId, name: str) -> None:
        """Wrap a context of ``engine``, whose lock is held; use :meth:`Engine.context` or :meth:`fork` instead."""
        self._engine = engine
        self.id = context
        self.name = name
        engine.watch(self)

    def __repr__(self) -> str:
        """Name the context."""
        return f"<Context {self.id}{' ' + self.name if self.name else ''}{' closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        """Return the context itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __copy__(self) -> Self:
        """Refuse: two handles on one context would close it under each other."""
        raise UsageError("a context cannot be copied", "fork it: context.fork()")

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Refuse, as :meth:`__copy__` does."""
        return self.__copy__()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._engine.has_context(self.id)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The sequence: what was appended and what was generated."""
        with self._engine.locked() as core:
            return tuple(core.get(self.id).tokens)

    @property
    def num_tokens(self) -> int:
        """Length of the sequence."""
        with self._engine.locked() as core:
            return len(core.get(self.id).tokens)

    @property
    def num_resident(self) -> int:
        """Leading tokens whose K/V is in the pool now; the others are computed when next asked."""
        with self._engine.locked() as core:
            return core.get(self.id).num_resident

    @property
    def pages(self) -> ContextPages:
        """Pages that it views now."""
        with self._engine.locked() as core:
            table = core.get(self.id).table
            return ContextPages(table.num_pages, table.num_own(core.index.views_by_page()))

    def num_fresh_pages(self, num_tokens: int) -> int:
        """Return how many free pages ``num_tokens`` tokens behind the resident ones would take, as things are now."""
        with self._engine.locked() as core:
            return core.get(self.id).table.pages_needed(num_tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Put tokens behind the sequence; they are computed with the next request."""
        with self._engine.locked() as core:
            core.append(self.id, tokens)

    def truncate(self, num_tokens: int) -> int:
        """Keep the first ``num_tokens`` tokens; return the pages that became free."""
        with self._engine.locked() as core:
            return core.truncate(self.id, num_tokens)

    def rebase(self, tokens: Sequence[int]) -> int:
        """Make the sequence equal ``tokens``, keeping the K/V of the longest common prefix; return its length."""
        with self._engine.locked() as core:
            return core.rebase(self.id, tokens)

    def pin(self, *, pinned: bool = True) -> None:
        """Forbid (or allow again) that this context's pages are taken while it is idle."""
        with self._engine.locked() as core:
            core.get(self.id).pinned = pinned

    def fork(self, *, name: str = "") -> Context:
        """Return a context with the same tokens and the same pages; copies no K/V."""
        with self._engine.locked() as core:
            return Context(self._engine, core.fork(self.id, name).id, name)

    def close(self) -> int:
        """Give the pages back, ending a running request; return how many became free. Idempotent."""
        with self._engine.locked() as core:
            return core.close(self.id)

    def save(self, name: str, store: SnapshotStore) -> SnapshotFacts:
        """Save tokens and K/V under ``name``; a snapshot outlives the context and the process.

        Raises:
            SnapshotError: it could not be written; nothing has changed.
        """
        return self._engine.save(self.id, name, store)

    # --- requests --------------------------------------------------------------------------

    def submit(
        self,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        stop_ids: Collection[int] | None = None,
        constraint: Allowed | None = None,
    ) -> Request:
        """Ask for up to ``max_tokens`` tokens; returns at once.

        ``stop`` strings end the text before them; ``stop_ids`` are tokens that end it (None: the model's own;
        an empty collection ignores them). Generated tokens join the sequence, a stop token does not.

        Raises:
            ContextBusy, ContextClosed, EmptyPrompt, ContextTooLong, Impossible, InvalidParameter, EngineDead.
        """
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 0:
            raise InvalidParameter("max_tokens", max_tokens, "a whole number from 0 up")
        ids = self._engine.facts.eos_ids if stop_ids is None else frozenset(stop_ids)
        goal = GenerateGoal(max_tokens, sampling, ids, constraint)
        return self._engine.submit(self, goal, stop=stop)

    def submit_labels(self, labels: Sequence[int]) -> Request:
        """Ask for the probabilities of ``labels`` as the next token: one forward pass, no decoding."""
        if not labels or len(set(labels)) != len(labels):
            raise InvalidParameter("labels", list(labels), "at least one token id, all different")
        return self._engine.submit(self, LabelsGoal(tuple(labels)))

    def submit_logprobs(self, tokens: Sequence[int]) -> Request:
        """Ask for the log-probability of each of ``tokens`` behind the sequence, which they do not join."""
        if not tokens:
            raise InvalidParameter("tokens", [], "at least one token id")
        return self._engine.submit(self, LogprobsGoal(len(tokens)), extra=tokens)

    def prefill(self) -> Request:
        """Ask that all but the last token be resident: forks then share them."""
        return self.submit(max_tokens=0)

    def generate(
        self,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        stop_ids: Collection[int] | None = None,
    ) -> Completion:
        """Generate and wait; arguments and errors as for :meth:`submit`."""
        return self.submit(max_tokens=max_tokens, sampling=sampling, stop=stop, stop_ids=stop_ids).result()

    def stream(
        self,
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        stop: Sequence[str] = (),
        stop_ids: Collection[int] | None = None,
    ) -> Iterator[Piece]:
        """Generate and yield pieces; leaving the loop early cancels. Arguments and errors as for :meth:`submit`."""
        request = self.submit(max_tokens=max_tokens, sampling=sampling, stop=stop, stop_ids=stop_ids)
        try:
            yield from request
        finally:
            request.cancel()


def still_open(contexts: MutableMapping[_Key, Context], key: _Key) -> Context | None:
    """Return the context that is kept under ``key``; one that somebody else closed, for its pages, is forgotten."""
    known = contexts.get(key)
    if known is not None and known.closed:
        del contexts[key]
        return None
    return known
