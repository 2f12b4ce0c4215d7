"""The planner is a pure function: what it lays out covers each row exactly, and it takes the cheaper way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.backend.base import Segment, WantNothing
from pie_mlx.backend.mlx.calls import Call, CostModel, Kind
from pie_mlx.backend.mlx.planner import Grouping, PlanSettings, StepPlan, plan_step
from pie_mlx.ids import ContextId

COSTS = CostModel(bytes_per_s=1e10, ops_per_s=1.5e10, call_s=6e-5, bytes_per_key=1536, ops_per_key=2304)
FREE_OPS = CostModel(bytes_per_s=6e9, ops_per_s=1e15, call_s=1e-7, bytes_per_key=1536, ops_per_key=2304)


def _segment(name: int, context: list[int], written: list[int]) -> Segment:
    """Return a segment over explicit slots."""
    slots = np.array(context, dtype=np.int32)
    tokens = np.arange(len(written), dtype=np.int32)
    return Segment(ContextId(name), tokens, len(context), slots, np.array(written, dtype=np.int32), WantNothing())


def _forks(count: int, prefix: int, private: int, gap: int) -> list[Segment]:
    """Return decode rows that share ``prefix`` slots, each with ``private`` slots of its own, ``gap`` apart."""
    shared = list(range(16, 16 + prefix))
    segments = []
    for at in range(count):
        first = 16 + prefix + at * (private + 1 + gap)
        own = list(range(first, first + private + 1))
        segments.append(_segment(at, shared + own[:-1], own[-1:]))
    return segments


def _slots_seen(call: Call, row: int) -> npt.NDArray[np.int64]:
    """Return the slots that row ``row`` of a call sees, in the order of its keys."""
    at = row - call.start
    if call.prefix is not None:
        return np.concatenate(
            [_slots_seen(call.prefix, row), _slots_seen(replace(call, kind=Kind.PADDED, prefix=None), row)]
        )
    slots = np.arange(call.lo, call.hi) if call.slots is None else call.slots
    keys = (slots[at] if call.kind is Kind.PADDED else slots).astype(np.int64)
    if call.causal:
        return keys[: len(keys) - (call.stop - call.start - 1 - at)]
    return keys if call.mask is None else keys[call.mask[at]]


def _assert_exact(plan: StepPlan, window: int | None) -> None:
    """Assert that every row sees its own sequence's last ``window`` slots, no more, no less."""
    calls = plan.calls(window)
    assert [call.start for call in calls] == [0, *[call.stop for call in calls][:-1]]
    assert calls[-1].stop == plan.num_rows
    for segment, start in zip(plan.segments, plan.starts, strict=False):
        sequence = np.concatenate([segment.context_slots, segment.write_slots])
        for i in range(len(segment.tokens)):
            seen = sequence[: segment.position + i + 1]
            expected = seen if window is None else seen[-window:]
            call = next(call for call in calls if call.start <= start + i < call.stop)
            assert sorted(_slots_seen(call, start + i)) == sorted(expected)


@st.composite
def steps(draw: st.DrawFn) -> list[Segment]:
    """Draw trees of contexts over shuffled slots: shared prefixes, private tails, chunks and decode rows."""
    slots = list(draw(st.permutations(range(16, 140))))
    segments: list[Segment] = []
    for _ in range(draw(st.integers(1, 3))):
        prefix = [slots.pop() for _ in range(draw(st.integers(0, 12)))]
        for _ in range(draw(st.integers(1, 3))):
            own = [slots.pop() for _ in range(draw(st.integers(0, 6)))]
            written = [slots.pop() for _ in range(draw(st.sampled_from([1, 1, 1, 5])))]
            shared = prefix[: draw(st.integers(0, len(prefix)))]
            segments.append(_segment(len(segments), shared + own, written))
    return segments


@given(
    segments=steps(),
    grouping=st.sampled_from([None, *Grouping]),
    kind=st.sampled_from([None, Kind.VIEW, Kind.GATHER, Kind.CASCADE]),
    window=st.sampled_from([None, 1, 4, 9]),
)
def test_every_row_sees_exactly_its_own_keys(
    segments: list[Segment], grouping: Grouping | None, kind: Kind | None, window: int | None
) -> None:
    """Whatever is chosen or forced, the keys of each row are those of its own sequence, within its window."""
    plan = plan_step(segments, PlanSettings(COSTS, grouping, kind))
    assert sorted(plan.places) == list(range(len(segments)))
    assert [segments[place] for place in plan.places] == list(plan.segments)
    _assert_exact(plan, window)


@given(segments=steps(), window=st.sampled_from([None, 3, 8]))
def test_a_window_over_one_group_is_a_mask_over_its_keys(segments: list[Segment], window: int | None) -> None:
    """The mask for models that get arrays shows each row the same slots as a call planned for the window."""
    plan = plan_step(segments, PlanSettings(COSTS, Grouping.ONE))
    (call,) = plan.calls(None)
    mask = plan.mask_over(call, window)
    keys = np.arange(call.lo, call.hi) if call.slots is None else call.slots
    for segment, start in zip(plan.segments, plan.starts, strict=False):
        sequence = np.concatenate([segment.context_slots, segment.write_slots])[: segment.position + 1]
        expected = sequence if window is None else sequence[-window:]
        assert sorted(keys[mask[start]].tolist()) == sorted(expected.tolist())


def test_a_sequence_in_order_is_a_plain_view() -> None:
    """One context over consecutive slots needs no mask and no copy, in decode and in prefill."""
    decode = plan_step([_segment(1, list(range(16, 80)), [80])], PlanSettings(COSTS))
    (call,) = decode.calls(None)
    assert (call.kind, call.lo, call.hi, call.mask, call.causal) == (Kind.VIEW, 16, 81, None, False)
    prefill = plan_step([_segment(1, list(range(16, 80)), list(range(80, 90)))], PlanSettings(COSTS))
    (call,) = prefill.calls(None)
    assert (call.kind, call.lo, call.hi, call.mask, call.causal) == (Kind.VIEW, 16, 90, None, True)


def test_forks_of_a_long_prefix_attend_in_one_call() -> None:
    """Sixteen branches of a 512-token prefix read it once."""
    plan = plan_step(_forks(16, 512, 12, 0), PlanSettings(COSTS, cascades=False))
    (call,) = plan.calls(None)
    assert call.kind is Kind.VIEW
    assert call.span == 512 + 16 * 13


def test_forks_with_tails_cascade() -> None:
    """Where the device can, the prefix is read once without a mask and each branch has its own tail."""
    plan = plan_step(_forks(16, 512, 60, 0), PlanSettings(COSTS))
    (call,) = plan.calls(None)
    assert call.kind is Kind.CASCADE
    assert call.prefix is not None
    assert (call.prefix.kind, call.prefix.span, call.prefix.mask) == (Kind.VIEW, 512, None)
    assert call.span == 512 + 61


def test_a_chunk_leaves_its_tree() -> None:
    """A long prefill chunk does not attend over its siblings' tails."""
    forks = _forks(8, 64, 200, 0)
    chunk = _segment(20, list(range(16, 80)), list(range(5000, 5200)))
    plan = plan_step([*forks, chunk], PlanSettings(COSTS))
    spans = {call.stop - call.start: call.span for call in plan.calls(None)}
    assert spans[200] == 264


def test_a_view_that_is_mostly_holes_becomes_a_gather() -> None:
    """Branches whose pages lie far apart gather exactly their slots."""
    plan = plan_step(_forks(4, 64, 3, 2000), PlanSettings(COSTS, cascades=False))
    (call,) = plan.calls(None)
    assert call.kind is Kind.GATHER
    assert call.span == 64 + 4 * 4


def test_many_small_strangers_share_a_padded_gather() -> None:
    """Where an operation costs more than a copy, unrelated rows are served by one call."""
    strangers = [_segment(at, list(range(1000 * at, 1000 * at + 20 + at)), [1000 * at + 100]) for at in range(1, 25)]
    plan = plan_step(strangers, PlanSettings(COSTS))
    assert plan.grouping is Grouping.PADDED
    assert [call.kind for call in plan.calls(None)] == [Kind.PADDED]


def test_long_strangers_keep_their_own_views() -> None:
    """Copying long contexts into a padded gather would cost more than two calls."""
    strangers = [_segment(at, list(range(9000 * at, 9000 * at + 8000)), [9000 * at + 8000]) for at in (1, 2)]
    plan = plan_step(strangers, PlanSettings(COSTS))
    assert [call.kind for call in plan.calls(None)] == [Kind.VIEW, Kind.VIEW]
    assert all(call.mask is None for call in plan.calls(None))


def test_long_private_tails_are_not_multiplied_by_every_row() -> None:
    """With tails far longer than the prefix, a shared call would do sixteen times the work."""
    plan = plan_step(_forks(16, 64, 2000, 0), PlanSettings(COSTS))
    assert max(call.span for call in plan.calls(None)) < 3000
    plain = plan_step(_forks(16, 64, 2000, 0), PlanSettings(COSTS, cascades=False))
    assert max(call.span for call in plain.calls(None)) < 3000


@pytest.mark.parametrize("costs", [COSTS, FREE_OPS])
def test_the_choice_is_the_cheapest_of_all(costs: CostModel) -> None:
    """No forced grouping is estimated cheaper than the one that was chosen."""
    segments = [*_forks(4, 100, 30, 0), _segment(9, list(range(3000, 3040)), [3040])]
    chosen = sum(group.cost_s for group in plan_step(segments, PlanSettings(costs)).groups)
    for grouping in Grouping:
        forced = plan_step(segments, PlanSettings(costs, grouping))
        assert chosen <= sum(group.cost_s for group in forced.groups) + 1e-12


def test_a_plan_explains_itself() -> None:
    """The line names rows, grouping and each call."""
    text = plan_step(_forks(2, 32, 1, 0), PlanSettings(COSTS)).explain()
    assert text.startswith("2 rows, ")
    assert "keys]" in text
