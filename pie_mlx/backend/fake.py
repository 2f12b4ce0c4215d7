"""A backend without a model: the next token is a hash of the sequence, read back through the arena.

It stands for the device alone. Its "K/V" of a slot is the (token, position) that was written there, and a
row computes its answer from the slots it is given, in order: a wrong slot, a stale page or a mixed-up
view therefore changes the text or fails an assertion, exactly where a real model would go quietly wrong.
Faults can be injected by step number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import (
    BackendFacts,
    Foresee,
    IntArray,
    LabelProbs,
    Logprobs,
    Outcome,
    Prefilled,
    RowFailed,
    Sampled,
    Segment,
    WantLabels,
    WantLogprobs,
    WantNothing,
    WantToken,
)
from pie_mlx.errors import DeviceFailed, InvalidParameter
from pie_mlx.ids import ContextId
from pie_mlx.sampling import mix

_BASE = 0x9E3779B97F4A7C15
_LOW64 = (1 << 64) - 1


def sequence_hash(tokens: Sequence[int]) -> int:
    """Return the 64-bit hash of a token sequence that all of this backend's answers come from."""
    value = 0
    for token in tokens:
        value = (value * _BASE + token + 1) & _LOW64
    return mix(value)


@dataclass(slots=True)
class Faults:
    """What goes wrong at which step (counted from 0); each happens once."""

    fail: frozenset[int] = frozenset()
    """The whole step raises."""
    hang: frozenset[int] = frozenset()
    """The step blocks until :attr:`release` is set."""
    lose_row: frozenset[int] = frozenset()
    """The last segment's outcome is missing."""
    fail_row: frozenset[int] = frozenset()
    """The first segment fails, the others do not."""
    before_step: Mapping[int, Callable[[], None]] = field(default_factory=dict)
    """Called before the step runs: to evict, cancel or close in the middle of a run."""
    release: threading.Event = field(default_factory=threading.Event)
    is_hanging: threading.Event = field(default_factory=threading.Event)
    """Set once a step hangs."""


class FakeBackend:
    """A deterministic device of ``vocab_size`` tokens and ``context_tokens`` positions."""

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        context_tokens: int = 1 << 20,
        eos_ids: frozenset[int] = frozenset(),
        faults: Faults | None = None,
        max_batch_rows: int | None = None,
        has_state: bool = False,
        window: int | None = None,
    ) -> None:
        """Make a device; ``eos_ids`` are ordinary tokens that end a request when drawn.

        With ``has_state`` each segment must bring the state that its context's last segment left: here the
        sequence itself, so that one that is stale, missing or mixed up fails an assertion. With ``window`` an
        answer depends on the last ``window`` tokens alone, and only their slots are looked at.
        """
        self._facts = BackendFacts(
            model="fake",
            fingerprint=f"fake-{vocab_size}",
            vocab_size=vocab_size,
            context_tokens=context_tokens,
            kv_bytes_per_token=8,
            num_layers=1,
            device="fake",
            dtype="int32",
            eos_ids=eos_ids,
            max_batch_rows=max_batch_rows,
            has_state=has_state,
            window=window,
        )
        self.faults = faults or Faults()
        self.num_steps = 0
        self.num_rows = 0
        self.widest = 0
        self.num_guesses = 0
        """Steps in which the next one was foreseen, rightly or not."""
        self.num_foreseen = 0
        """Steps that had been foreseen, all but their tokens and draws."""
        self._foreseen: list[tuple[object, ...]] = []
        self.contexts_seen: set[ContextId] = set()
        self._tokens: IntArray = np.zeros(0, dtype=np.int32)
        self._positions: IntArray = np.zeros(0, dtype=np.int32)

    @property
    def facts(self) -> BackendFacts:
        """The device's facts."""
        return self._facts

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the arena; unwritten slots hold -1."""
        self._tokens = np.full((num_pages + 1) * page_size, -1, dtype=np.int32)
        self._positions = np.full_like(self._tokens, -1)

    def step(self, segments: Sequence[Segment], foresee: Foresee | None = None) -> list[Outcome]:
        """Write, read back, and answer; faults happen as asked, and what is foreseen is kept beside what came."""
        step, self.num_steps = self.num_steps, self.num_steps + 1
        faults = self.faults
        if step in faults.before_step:
            faults.before_step[step]()
        if step in faults.hang:
            faults.is_hanging.set()
            faults.release.wait()
        if step in faults.fail:
            raise DeviceFailed("injected failure", step)
        self.widest = max(self.widest, len(segments))
        for segment in segments:
            self._write(segment)
        self._compare(segments, [] if foresee is None else foresee())
        outcomes: list[Outcome] = [self._answer(segment) for segment in segments]
        if self._facts.has_state:
            outcomes = [self._carry(segment, outcome) for segment, outcome in zip(segments, outcomes, strict=True)]
        if step in faults.fail_row:
            outcomes[0] = RowFailed(DeviceFailed("injected row failure", step))
        if step in faults.lose_row:
            outcomes.pop()
        return outcomes

    def _compare(self, segments: Sequence[Segment], foreseen: list[Segment]) -> None:
        """Count this step if the one before foresaw it, and keep what is foreseen of the next."""
        self.num_foreseen += _shape(segments) == self._foreseen
        self._foreseen = _shape(foreseen)
        self.num_guesses += bool(foreseen)

    def _write(self, segment: Segment) -> None:
        """Store the segment's tokens and positions at its slots."""
        count = len(segment.tokens)
        assert count == len(segment.write_slots) > 0, "one slot a token, at least one token"
        assert len(segment.context_slots) == segment.position, "every earlier token has a slot"
        self._tokens[segment.write_slots] = segment.tokens
        self._positions[segment.write_slots] = np.arange(segment.position, segment.position + count)
        self.num_rows += count
        self.contexts_seen.add(segment.context)

    def _sequence(self, segment: Segment) -> list[int]:
        """Read back, through its slots, what the segment's rows see; assert that every slot holds its own position."""
        slots = np.concatenate([segment.context_slots, segment.write_slots])
        window = self._facts.window
        first = 0 if window is None else max(0, segment.position - window + 1)
        slots = slots[first:]
        wrong = np.flatnonzero(self._positions[slots] != np.arange(first, first + len(slots)))
        assert wrong.size == 0, f"slots of {segment.context} hold other positions from {wrong[:1]} on"
        sequence: list[int] = self._tokens[slots].tolist()
        return sequence

    def _carry(self, segment: Segment, outcome: Outcome) -> Outcome:
        """Check the state that came with a segment and put the one after it into the outcome."""
        state = segment.state or ()
        sequence = self._sequence(segment)
        first = segment.position + len(segment.tokens) - len(sequence)
        assert isinstance(state, tuple), "the engine hands back what it was given"
        assert len(state) == segment.position, "the state is that of the sequence's position"
        assert state[first:] == tuple(sequence[: segment.position - first]), "the state is that of the sequence"
        return outcome if isinstance(outcome, RowFailed) else replace(outcome, state=(*state[:first], *sequence))

    def _hash(self, sequence: list[int]) -> int:
        """Return the hash of what the last token of ``sequence`` sees."""
        return sequence_hash(sequence[-(self._facts.window or len(sequence)) :])

    def _answer(self, segment: Segment) -> Outcome:
        """Answer what the segment wants from the hash of what its last row sees."""
        want = segment.want
        if isinstance(want, WantNothing):
            return Prefilled()
        sequence = self._sequence(segment)
        if isinstance(want, WantToken) and want.allowed is not None and not self._is_usable(want.allowed):
            limit = f"at least one token id from 0 to {self._facts.vocab_size - 1}"
            return RowFailed(InvalidParameter("allowed", want.allowed.tolist(), limit))
        if isinstance(want, WantLabels):
            value = self._hash(sequence)
            raw = [mix(value ^ label) % 1000 + 1 for label in want.labels]
            return LabelProbs(tuple(weight / (sum(raw) + 500) for weight in raw))
        if isinstance(want, WantLogprobs):
            start = len(sequence) - len(want.targets)
            hashes = [self._hash(sequence[: start + at + 1]) for at in range(len(want.targets))]
            return Logprobs(tuple(-(mix(h ^ int(t)) % 1000) / 100 for h, t in zip(hashes, want.targets, strict=True)))
        # A sampled request draws with its own uniform; a greedy one depends on the sequence alone.
        draw = 0 if want.sampling.is_greedy else int(want.uniform * (1 << 53))
        value = mix(self._hash(sequence) ^ draw)
        if want.allowed is not None:
            token = int(want.allowed[value % len(want.allowed)])
        else:
            token = value % self._facts.vocab_size
        top = tuple(((token + at) % self._facts.vocab_size, -0.5 - at) for at in range(want.sampling.num_logprobs))
        return Sampled(token, -0.5, top)

    def _is_usable(self, allowed: IntArray) -> bool:
        """Return whether a token can be drawn from ``allowed``."""
        return len(allowed) > 0 and bool(allowed.min() >= 0) and bool(allowed.max() < self._facts.vocab_size)

    def read_slots(self, slots: IntArray) -> dict[str, npt.NDArray[np.generic]]:
        """Copy tokens and positions out."""
        return {"tokens": self._tokens[slots].copy(), "positions": self._positions[slots].copy()}

    def write_slots(self, slots: IntArray, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Copy tokens and positions in."""
        self._tokens[slots] = arrays["tokens"]
        self._positions[slots] = arrays["positions"]

    def memory(self) -> dict[str, int]:
        """Count the arena's bytes."""
        size = self._tokens.nbytes + self._positions.nbytes
        return {"active": size, "peak": size, "cache": 0, "arena": size}

    def close(self) -> None:
        """Forget the arena."""
        self._tokens = self._positions = np.zeros(0, dtype=np.int32)


def _shape(segments: Sequence[Segment]) -> list[tuple[object, ...]]:
    """Return what of a step can be foreseen."""
    return [
        (each.context, each.position, each.state is None, each.context_slots.tobytes(), each.write_slots.tobytes())
        for each in segments
    ]
