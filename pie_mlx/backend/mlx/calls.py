"""Attention calls: which keys some rows of a step are multiplied with, and which of them each row sees.

The keys of a group of segments are a **view** of a slot range with a mask, a **gather** of exactly its slots,
a **padded** gather with one row of keys for each segment, or a **cascade**: the prefix that all rows share,
read once and without a mask, and a padded gather of what is each row's own.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import IntArray, Segment

BoolArray = npt.NDArray[np.bool_]


class Kind(enum.Enum):
    """Where an attention call takes its keys from."""

    VIEW = "view"
    GATHER = "gather"
    PADDED = "padded"
    CASCADE = "cascade"


@dataclass(frozen=True, slots=True)
class CostModel:
    """What the device does in a second; only the choice depends on it, never a result."""

    bytes_per_s: float
    ops_per_s: float
    call_s: float
    """Fixed cost of one attention call of one layer."""
    bytes_per_key: int
    """K and V of one slot in one layer."""
    ops_per_key: int
    """Multiplications and additions of one query row with one slot in one layer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One attention call over rows ``start:stop`` of the step."""

    kind: Kind
    start: int
    stop: int
    lo: int
    hi: int
    slots: IntArray | None
    """GATHER: ``[keys]``; PADDED and CASCADE: ``[segments, keys]``; VIEW: None."""
    mask: BoolArray | None
    """True where a row sees a key, ``[rows, keys]``; None: all of them, or causal."""
    causal: bool = False
    """Row i of n sees all but the last ``n - 1 - i`` keys."""
    prefix: Call | None = None
    """CASCADE: the keys that all rows see, before their own."""

    @property
    def span(self) -> int:
        """Keys that each row is multiplied with."""
        own = self.hi - self.lo if self.slots is None else int(self.slots.shape[-1])
        return own if self.prefix is None else own + self.prefix.span


def first_visible(segment: Segment, window: int | None) -> int:
    """Return the first position that the segment's first row sees."""
    return 0 if window is None else max(0, segment.position - window + 1)


def sequence_slots(segment: Segment, window: int | None) -> IntArray:
    """Return the slots that any row of the segment sees, in order."""
    return np.concatenate([segment.context_slots[first_visible(segment, window) :], segment.write_slots])


def in_order(slots: IntArray) -> bool:
    """Whether the slots are consecutive and ascending."""
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1 and bool((np.diff(slots) == 1).all())


def slot_range(segments: Sequence[Segment], window: int | None) -> tuple[int, int]:
    """Return the smallest slot range that holds all keys of the segments."""
    sequences = [sequence_slots(segment, window) for segment in segments]
    return min(int(s.min()) for s in sequences), max(int(s.max()) for s in sequences) + 1


def used_slots(segments: Sequence[Segment], lo: int, hi: int, window: int | None) -> BoolArray:
    """Return which slots of the range any row sees, shape ``[hi - lo]``."""
    used = np.zeros(hi - lo, dtype=np.bool_)
    for segment in segments:
        used[sequence_slots(segment, window) - lo] = True
    return used


def visible_keys(segment: Segment, window: int | None) -> BoolArray:
    """Return which of the segment's own keys each row sees, ``[rows, keys of sequence_slots]``."""
    rows = np.arange(segment.position, segment.position + len(segment.tokens))[:, None]
    keys = np.arange(first_visible(segment, window), segment.position + len(segment.tokens))[None]
    seen: BoolArray = keys <= rows
    return seen if window is None else seen & (keys > rows - window)


def padded_call(segments: Sequence[Segment], start: int, window: int | None) -> Call:
    """One row of keys for each segment of one row."""
    slots, mask = _padded([sequence_slots(segment, window) for segment in segments])
    return Call(Kind.PADDED, start, start + len(segments), 0, slots.shape[1], slots, mask)


def _padded(sequences: Sequence[IntArray]) -> tuple[IntArray, BoolArray | None]:
    """Stack sequences of slots, filled up from the trash page, and say which are real (None: all)."""
    lengths = np.array([len(slots) for slots in sequences])
    mask: BoolArray = np.arange(int(lengths.max()))[None] < lengths[:, None]
    slots = np.zeros(mask.shape, dtype=np.int32)
    slots[mask] = np.concatenate(sequences)
    return slots, None if bool(mask.all()) else mask


def single_call(segment: Segment, start: int, window: int | None, kind: Kind | None) -> Call:
    """The keys of one sequence, in order: a plain view where they lie in order, else a gather."""
    slots = sequence_slots(segment, window)
    rows = len(segment.tokens)
    cut = window is not None and rows > 1 and segment.position + rows > window
    mask = visible_keys(segment, window) if cut else None
    causal = rows > 1 and not cut
    if in_order(slots) and kind is not Kind.GATHER:
        return Call(Kind.VIEW, start, start + rows, int(slots[0]), int(slots[-1]) + 1, None, mask, causal)
    if kind is Kind.VIEW:
        return shared_call([segment], start, window, gather=False)
    return Call(Kind.GATHER, start, start + rows, 0, len(slots), slots, mask, causal)


def shared_call(segments: Sequence[Segment], start: int, window: int | None, *, gather: bool) -> Call:
    """All keys of a group, with a mask that gives each row its own."""
    stop = start + sum(len(segment.tokens) for segment in segments)
    lo, hi = slot_range(segments, window)
    used = used_slots(segments, lo, hi, window)
    column = np.cumsum(used) - 1 if gather else np.arange(hi - lo)
    mask = np.zeros((stop - start, int(used.sum()) if gather else hi - lo), dtype=np.bool_)
    row = 0
    for segment in segments:
        columns = column[sequence_slots(segment, window) - lo]
        mask[row : row + len(segment.tokens), columns] = visible_keys(segment, window)
        row += len(segment.tokens)
    slots = (np.flatnonzero(used) + lo).astype(np.int32) if gather else None
    return Call(Kind.GATHER if gather else Kind.VIEW, start, stop, lo, hi, slots, mask)


def common_prefix(segments: Sequence[Segment]) -> int:
    """Return how many leading slots the contexts of all segments share."""
    first = segments[0].context_slots
    common = min(segment.position for segment in segments)
    for segment in segments[1:]:
        differs = segment.context_slots[:common] != first[:common]
        if differs.any():
            common = int(differs.argmax())
    return common


def can_cascade(segments: Sequence[Segment], window: int | None) -> bool:
    """Whether the segments are decode rows with a common prefix that the window does not cut."""
    single = all(len(segment.tokens) == 1 and (window is None or segment.position < window) for segment in segments)
    return single and len(segments) > 1 and common_prefix(segments) > 0


def cascade_call(segments: Sequence[Segment], start: int) -> Call:
    """The common prefix once, and each row's own keys after it."""
    common = common_prefix(segments)
    stop = start + len(segments)
    shared = segments[0].context_slots[:common]
    if in_order(shared):
        prefix = Call(Kind.VIEW, start, stop, int(shared[0]), int(shared[-1]) + 1, None, None)
    else:
        prefix = Call(Kind.GATHER, start, stop, 0, common, shared, None)
    own = _padded([sequence_slots(segment, None)[common:] for segment in segments])
    return Call(Kind.CASCADE, start, stop, 0, own[0].shape[1], *own, prefix=prefix)
