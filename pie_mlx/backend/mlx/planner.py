"""How the rows of a step attend: a pure choice among groupings and kinds of calls, by bytes and operations.

Segments that share their first slot share a prefix: they form a **tree**. A group of segments attends in one
call; its rows lie together in the step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pie_mlx.backend.base import IntArray, Segment
from pie_mlx.backend.mlx.calls import (
    BoolArray,
    Call,
    CostModel,
    Kind,
    can_cascade,
    cascade_call,
    common_prefix,
    first_visible,
    in_order,
    padded_call,
    sequence_slots,
    shared_call,
    single_call,
    slot_range,
    used_slots,
    visible_keys,
)


class Grouping(enum.Enum):
    """Which segments attend together; the planner weighs them unless one is forced."""

    EACH = "each"
    TREES = "trees"
    PADDED = "padded"
    TREES_PADDED = "trees+padded"
    ONE = "one"


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Costs, and what tests and the bench may force."""

    costs: CostModel
    grouping: Grouping | None = None
    kind: Kind | None = None
    """Force VIEW, GATHER, or CASCADE where it can be, for groups that are not padded."""
    cascades: bool = True
    """Whether the device's attention can serve a cascade."""
    window: int | None = None
    """Tokens that a row sees in the layer that sees most; None: all."""


@dataclass(frozen=True, slots=True)
class Group:
    """Segments (places in the plan's order) that attend together."""

    members: tuple[int, ...]
    kind: Kind
    """A VIEW or CASCADE may fall back: to a gather where slots are out of order, to a mask where a window cuts."""
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
        start = self.starts[group.members[0]]
        if group.kind is Kind.PADDED:
            return padded_call(members, start, window)
        if len(members) == 1:
            return single_call(members[0], start, window, self.settings.kind)
        if group.kind is Kind.CASCADE and can_cascade(members, window):
            return cascade_call(members, start)
        return shared_call(members, start, window, gather=group.kind is not Kind.VIEW)

    def mask_over(self, call: Call, window: int | None) -> BoolArray:
        """Return the mask ``[rows, keys]`` of a window over the keys of a one-group call made without one."""
        mask = np.zeros((self.num_rows, call.span), dtype=np.bool_)
        for segment, start in zip(self.segments, self.starts, strict=False):
            slots = sequence_slots(segment, None)
            if call.slots is None:
                columns = slots - call.lo
            elif len(self.segments) == 1 and call.mask is None:
                columns = np.arange(len(slots), dtype=np.int32)
            else:
                columns = np.searchsorted(call.slots, slots).astype(np.int32)
            seen = visible_keys(segment, window)
            mask[start : start + len(segment.tokens), columns[len(slots) - seen.shape[1] :]] = seen
        return mask

    def explain(self) -> str:
        """Say in one line what was chosen: for the bench and for people."""
        calls = self.calls(self.settings.window)
        parts = [f"{call.kind.value}[{call.stop - call.start} rows x {call.span} keys]" for call in calls]
        return f"{self.num_rows} rows, {self.grouping.value}: " + ", ".join(parts)


def plan_step(segments: Sequence[Segment], settings: PlanSettings) -> StepPlan:
    """Choose the cheapest grouping of the segments and lay their rows out accordingly."""
    weigher = _Weigher(segments, settings)
    grouping = settings.grouping or (Grouping.EACH if len(segments) == 1 else None)
    if grouping is not None:
        groups = weigher.partition(grouping)
    else:
        options = [(each, weigher.partition(each)) for each in Grouping]
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


class _Weigher:
    """Partitions of a step's segments, with what one layer's attention costs; each group is weighed once."""

    def __init__(self, segments: Sequence[Segment], settings: PlanSettings) -> None:
        self._segments = segments
        self._settings = settings
        self._known: dict[tuple[int, ...], Group] = {}

    def partition(self, grouping: Grouping) -> list[Group]:
        """Split the segments (by index) as ``grouping`` says."""
        everyone = range(len(self._segments))
        if grouping is Grouping.ONE:
            return [self._group(everyone)]
        if grouping is Grouping.EACH:
            return [self._group([i]) for i in everyone]
        if grouping is Grouping.PADDED:
            rows = [i for i in everyone if self._is_row(i)]
            return [self._group([i]) for i in everyone if not self._is_row(i)] + self._padded(rows)
        groups = [group for tree in self._trees() for group in self._tree(tree)]
        if grouping is Grouping.TREES:
            return groups
        lonely = [group.members[0] for group in groups if len(group.members) == 1 and self._is_row(group.members[0])]
        return [group for group in groups if group.members[0] not in lonely] + self._padded(lonely)

    def _is_row(self, i: int) -> bool:
        """Whether a segment is a single row."""
        return len(self._segments[i].tokens) == 1

    def _trees(self) -> list[list[int]]:
        """Group segments whose first visible tokens lie in the same slot."""
        trees: dict[int, list[int]] = {}
        for i, segment in enumerate(self._segments):
            first = first_visible(segment, self._settings.window)
            slot = segment.context_slots[first] if first < segment.position else segment.write_slots[0]
            trees.setdefault(int(slot), []).append(i)
        return list(trees.values())

    def _tree(self, tree: list[int]) -> list[Group]:
        """Keep a tree in one group, or give its chunks groups of their own."""
        rows = [i for i in tree if self._is_row(i)]
        whole = self._group(tree)
        if len(rows) == len(tree) or len(tree) == 1:
            return [whole]
        apart = [self._group([i]) for i in tree if not self._is_row(i)] + ([self._group(rows)] if rows else [])
        return apart if sum(group.cost_s for group in apart) < whole.cost_s else [whole]

    def _padded(self, members: list[int]) -> list[Group]:
        """Put rows into one padded group; a single one needs no padding."""
        if len(members) < 2:
            return [self._group([i]) for i in members]
        longest = max(self._segments[i].position + 1 for i in members)
        longest = min(longest, self._settings.window or longest)
        return [Group(tuple(members), Kind.PADDED, self._seconds(rows=1, keys=len(members) * longest, copied=True))]

    def _group(self, members: Iterable[int]) -> Group:
        """Weigh the ways in which a group can attend without padding, and take the cheapest."""
        key = tuple(members)
        if key not in self._known:
            costs = self._ways([self._segments[i] for i in key])
            forced = self._settings.kind
            kind = forced if forced in costs else min(costs, key=lambda way: costs[way])
            self._known[key] = Group(key, kind, costs[kind])
        return self._known[key]

    def _ways(self, segments: Sequence[Segment]) -> dict[Kind, float]:
        """Return what each kind of call would cost a group, in seconds a layer."""
        rows, window = sum(len(segment.tokens) for segment in segments), self._settings.window
        if len(segments) == 1:
            slots = sequence_slots(segments[0], window)
            if in_order(slots):
                return {Kind.VIEW: self._seconds(rows, len(slots))}
            return {Kind.GATHER: self._seconds(rows, len(slots), copied=True)}
        lo, hi = slot_range(segments, window)
        union = int(used_slots(segments, lo, hi, window).sum())
        ways = {Kind.VIEW: self._seconds(rows, hi - lo), Kind.GATHER: self._seconds(rows, union, copied=True)}
        if self._settings.cascades and can_cascade(segments, window):
            common = common_prefix(segments)
            own = rows * max(segment.position + 1 - common for segment in segments)
            copied = not in_order(segments[0].context_slots[:common])
            ways[Kind.CASCADE] = self._seconds(rows, common, copied=copied) + self._seconds(1, own, copied=True)
        return ways

    def _seconds(self, rows: int, keys: int, *, copied: bool = False) -> float:
        """Return what one call costs: a key that is gathered is read, written and read again."""
        costs = self._settings.costs
        moved = keys * costs.bytes_per_key * (3 if copied else 1)
        return costs.call_s + moved / costs.bytes_per_s + rows * keys * costs.ops_per_key / costs.ops_per_s
