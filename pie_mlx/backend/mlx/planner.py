"""How the rows of a step attend: a pure choice among views and gathers, by bytes and operations.

Segments that share their first slot share a prefix: they form a **tree**. A group of segments attends in one
call over one set of keys: a **view** of a slot range with a mask, a **gather** of exactly its slots, or a
**padded** gather with one row of keys for each segment. The rows of a group lie together in the step.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import IntArray, Segment

BoolArray = npt.NDArray[np.bool_]


class Kind(enum.Enum):
    """Where an attention call takes its keys from."""

    VIEW = "view"
    GATHER = "gather"
    PADDED = "padded"


class Grouping(enum.Enum):
    """Which segments attend together; the planner weighs them unless one is forced."""

    EACH = "each"
    TREES = "trees"
    PADDED = "padded"
    TREES_PADDED = "trees+padded"
    ONE = "one"


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
class PlanSettings:
    """Costs, and what tests and the bench may force."""

    costs: CostModel
    grouping: Grouping | None = None
    kind: Kind | None = None
    """VIEW or GATHER for groups that are not padded."""


@dataclass(frozen=True, slots=True)
class Call:
    """One attention call over rows ``start:stop`` of the step."""

    kind: Kind
    start: int
    stop: int
    lo: int
    hi: int
    slots: IntArray | None
    """GATHER: ``[span]``; PADDED: ``[segments, span]``; VIEW: None."""
    mask: BoolArray | None
    """True where a row sees a key, ``[rows, span]``; None: all of them, or causal."""
    causal: bool = False
    """Row i of n sees all but the last ``n - 1 - i`` keys."""

    @property
    def span(self) -> int:
        """Keys that each row is multiplied with."""
        return self.hi - self.lo if self.slots is None else int(self.slots.shape[-1])


@dataclass(frozen=True, slots=True)
class Group:
    """Segments (places in the plan's order) that attend together."""

    members: tuple[int, ...]
    padded: bool
    cost_s: float


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step as arrays: the rows in their order, and who attends with whom."""

    segments: tuple[Segment, ...]
    """In row order."""
    places: tuple[int, ...]
    """``places[i]`` is the index that ``segments[i]`` had in the step as it was asked for."""
    starts: tuple[int, ...]
    """First row of each segment, and the number of rows at the end."""
    tokens: IntArray
    positions: IntArray
    write_slots: IntArray
    groups: tuple[Group, ...]
    grouping: Grouping
    settings: PlanSettings = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.starts[-1]

    def calls(self, window: int | None) -> tuple[Call, ...]:
        """Return the attention calls of layers that see the last ``window`` tokens (None: all)."""
        return tuple(self._call(group, window) for group in self.groups)

    def _call(self, group: Group, window: int | None) -> Call:
        """Build the call of one group."""
        members = [self.segments[i] for i in group.members]
        start, stop = self.starts[group.members[0]], self.starts[group.members[-1] + 1]
        if group.padded:
            return _padded_call(members, start, window)
        if len(members) == 1:
            return _single_call(members[0], start, window, self.settings)
        return _shared_call(members, start, stop, window, self.settings)

    def mask_over(self, call: Call, window: int | None) -> BoolArray:
        """Return the mask ``[rows, keys]`` of a window over the keys of a one-group call made without one."""
        mask = np.zeros((self.num_rows, call.span), dtype=np.bool_)
        for segment, start in zip(self.segments, self.starts, strict=False):
            slots = _sequence(segment, None)
            if call.slots is None:
                columns = slots - call.lo
            elif len(self.segments) == 1 and call.mask is None:
                columns = np.arange(len(slots), dtype=np.int32)
            else:
                columns = np.searchsorted(call.slots, slots).astype(np.int32)
            seen = _visible(segment, window)
            mask[start : start + len(segment.tokens), columns[len(slots) - seen.shape[1] :]] = seen
        return mask

    def explain(self) -> str:
        """Say in one line what was chosen: for the bench and for people."""
        calls = self.calls(None)
        parts = [f"{call.kind.value}[{call.stop - call.start} rows x {call.span} keys]" for call in calls]
        return f"{self.num_rows} rows, {self.grouping.value}: " + ", ".join(parts)


def plan_step(segments: Sequence[Segment], settings: PlanSettings) -> StepPlan:
    """Choose the cheapest grouping of the segments and lay their rows out accordingly."""
    if settings.grouping is not None:
        grouping, groups = settings.grouping, _partition(segments, settings.grouping, settings)
    elif len(segments) == 1:
        grouping, groups = Grouping.EACH, _partition(segments, Grouping.EACH, settings)
    else:
        options = [(each, _partition(segments, each, settings)) for each in Grouping]
        grouping, groups = min(options, key=lambda option: sum(group.cost_s for group in option[1]))
    order = tuple(i for group in groups for i in group.members)
    placed = {i: at for at, i in enumerate(order)}
    chosen = tuple(segments[i] for i in order)
    lengths = np.array([len(segment.tokens) for segment in chosen])
    return StepPlan(
        segments=chosen,
        places=order,
        starts=(0, *np.cumsum(lengths).tolist()),
        tokens=np.concatenate([segment.tokens for segment in chosen]).astype(np.int32, copy=False),
        positions=np.concatenate([np.arange(s.position, s.position + len(s.tokens), dtype=np.int32) for s in chosen]),
        write_slots=np.concatenate([segment.write_slots for segment in chosen]).astype(np.int32, copy=False),
        groups=tuple(replace(group, members=tuple(placed[i] for i in group.members)) for group in groups),
        grouping=grouping,
        settings=settings,
    )


# --- who attends with whom -----------------------------------------------------------------


def _partition(segments: Sequence[Segment], grouping: Grouping, settings: PlanSettings) -> list[Group]:
    """Split the segments (by index) as ``grouping`` says, with the cost of each group."""
    together: list[list[int]] = []
    padded: list[int] = []
    everyone = list(range(len(segments)))
    if grouping is Grouping.ONE:
        together = [everyone]
    elif grouping is Grouping.EACH:
        together = [[i] for i in everyone]
    elif grouping is Grouping.PADDED:
        padded = [i for i in everyone if len(segments[i].tokens) == 1]
        together = [[i] for i in everyone if len(segments[i].tokens) > 1]
    else:
        together = _trees(segments)
        if grouping is Grouping.TREES_PADDED:
            lonely = [tree[0] for tree in together if len(tree) == 1 and len(segments[tree[0]].tokens) == 1]
            padded = lonely if len(lonely) > 1 else []
            together = [tree for tree in together if not set(tree) <= set(padded)]
    groups = [Group(tuple(group), False, _cost([segments[i] for i in group], settings)) for group in together]
    if padded:
        groups.append(Group(tuple(padded), True, _padded_cost([segments[i] for i in padded], settings.costs)))
    return groups


def _trees(segments: Sequence[Segment]) -> list[list[int]]:
    """Group segments whose sequences begin in the same slot."""
    trees: dict[int, list[int]] = {}
    for i, segment in enumerate(segments):
        first = segment.context_slots if len(segment.context_slots) else segment.write_slots
        trees.setdefault(int(first[0]), []).append(i)
    return list(trees.values())


def _cost(segments: Sequence[Segment], settings: PlanSettings) -> float:
    """Seconds that one layer takes for a group that is not padded."""
    costs = settings.costs
    rows = sum(len(segment.tokens) for segment in segments)
    if len(segments) == 1:
        slots = _sequence(segments[0], None)
        span, union = int(slots.max() - slots.min()) + 1, len(slots)
        viewable = _in_order(slots)
    else:
        lo, hi = _range(segments, None)
        span, union = hi - lo, int(_used(segments, lo, hi, None).sum())
        viewable = True
    view = span * costs.bytes_per_key / costs.bytes_per_s + rows * span * costs.ops_per_key / costs.ops_per_s
    gather = 3 * union * costs.bytes_per_key / costs.bytes_per_s + rows * union * costs.ops_per_key / costs.ops_per_s
    return costs.call_s + (min(view, gather) if viewable else gather)


def _padded_cost(segments: Sequence[Segment], costs: CostModel) -> float:
    """Seconds that one layer takes for a padded gather: each key is read, written and read again."""
    keys = len(segments) * max(segment.position + 1 for segment in segments)
    return costs.call_s + keys * (3 * costs.bytes_per_key / costs.bytes_per_s + costs.ops_per_key / costs.ops_per_s)


# --- the keys of a group --------------------------------------------------------------------


def _first_visible(segment: Segment, window: int | None) -> int:
    """Return the first position that the segment's first row sees."""
    return 0 if window is None else max(0, segment.position - window + 1)


def _sequence(segment: Segment, window: int | None) -> IntArray:
    """Return the slots that any row of the segment sees, in order."""
    return np.concatenate([segment.context_slots[_first_visible(segment, window) :], segment.write_slots])


def _in_order(slots: IntArray) -> bool:
    """Whether the slots are consecutive and ascending."""
    return int(slots[-1]) - int(slots[0]) == len(slots) - 1 and bool((np.diff(slots) == 1).all())


def _range(segments: Sequence[Segment], window: int | None) -> tuple[int, int]:
    """Return the smallest slot range that holds all keys of the segments."""
    sequences = [_sequence(segment, window) for segment in segments]
    return min(int(s.min()) for s in sequences), max(int(s.max()) for s in sequences) + 1


def _used(segments: Sequence[Segment], lo: int, hi: int, window: int | None) -> BoolArray:
    """Return which slots of the range any row sees, shape ``[hi - lo]``."""
    used = np.zeros(hi - lo, dtype=np.bool_)
    for segment in segments:
        used[_sequence(segment, window) - lo] = True
    return used


def _visible(segment: Segment, window: int | None) -> BoolArray:
    """Return which of the segment's own keys each row sees, ``[rows, keys of _sequence]``."""
    rows = np.arange(segment.position, segment.position + len(segment.tokens))[:, None]
    keys = np.arange(_first_visible(segment, window), segment.position + len(segment.tokens))[None]
    seen: BoolArray = keys <= rows
    return seen if window is None else seen & (keys > rows - window)


def _padded_call(segments: Sequence[Segment], start: int, window: int | None) -> Call:
    """One row of keys for each segment, filled up with the trash page."""
    sequences = [_sequence(segment, window) for segment in segments]
    lengths = np.array([len(s) for s in sequences])
    span = int(lengths.max())
    mask: BoolArray = np.arange(span)[None] < lengths[:, None]
    slots = np.zeros((len(segments), span), dtype=np.int32)
    slots[mask] = np.concatenate(sequences)
    full = bool(mask.all())
    return Call(Kind.PADDED, start, start + len(segments), 0, span, slots, None if full else mask)


def _single_call(segment: Segment, start: int, window: int | None, settings: PlanSettings) -> Call:
    """The keys of one sequence, in order: a plain view where they lie in order, else a gather."""
    slots = _sequence(segment, window)
    rows = len(segment.tokens)
    cut = window is not None and rows > 1 and segment.position + rows > window
    mask = _visible(segment, window) if cut else None
    causal = rows > 1 and not cut
    if _in_order(slots) and settings.kind is not Kind.GATHER:
        return Call(Kind.VIEW, start, start + rows, int(slots[0]), int(slots[-1]) + 1, None, mask, causal)
    if settings.kind is Kind.VIEW:
        return _shared_call([segment], start, start + rows, window, settings)
    return Call(Kind.GATHER, start, start + rows, 0, len(slots), slots, mask, causal)


def _shared_call(
    segments: Sequence[Segment], start: int, stop: int, window: int | None, settings: PlanSettings
) -> Call:
    """All keys of a group, with a mask that gives each row its own."""
    lo, hi = _range(segments, window)
    used = _used(segments, lo, hi, window)
    union = int(used.sum())
    gather = settings.kind is Kind.GATHER
    if settings.kind is None:
        costs, rows = settings.costs, stop - start
        per_row = rows * costs.ops_per_key / costs.ops_per_s
        per_byte = costs.bytes_per_key / costs.bytes_per_s
        gather = union * (3 * per_byte + per_row) < (hi - lo) * (per_byte + per_row)
    column = np.cumsum(used) - 1 if gather else np.arange(hi - lo)
    mask = np.zeros((stop - start, union if gather else hi - lo), dtype=np.bool_)
    row = 0
    for segment in segments:
        columns = column[_sequence(segment, window) - lo]
        mask[row : row + len(segment.tokens), columns] = _visible(segment, window)
        row += len(segment.tokens)
    slots = (np.flatnonzero(used) + lo).astype(np.int32) if gather else None
    return Call(Kind.GATHER if gather else Kind.VIEW, start, stop, lo, hi, slots, mask)
