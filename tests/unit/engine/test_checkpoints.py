"""Checkpoints: which earlier state a truncation goes back to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.engine.checkpoints import MAX_KEPT, Checkpoints


def test_the_nearest_state_before_the_cut_is_found() -> None:
    """A cut between two states goes back to the first of them; before all of them to nothing."""
    kept = Checkpoints()
    kept.keep(10, "ten")
    kept.pass_by(19, "nineteen")
    assert kept.copy().latest(19) == (19, "nineteen")
    assert kept.copy().latest(18) == (10, "ten")
    assert kept.copy().latest(9) == (0, None)


def test_a_cut_forgets_what_lies_behind_it() -> None:
    """What is computed again may differ: no state of the old tokens comes back."""
    kept = Checkpoints()
    kept.keep(10, "old")
    kept.latest(9)
    assert kept.latest(100) == (0, None)


def test_a_fork_has_checkpoints_of_its_own() -> None:
    """A cut in the fork leaves the parent's."""
    kept = Checkpoints()
    kept.keep(4, "four")
    kept.copy().latest(2)
    assert kept.latest(4) == (4, "four")


@given(st.lists(st.tuples(st.sampled_from(["keep", "pass", "cut"]), st.integers(1, 30)), max_size=40))
def test_few_are_kept_and_each_is_of_its_position(steps: list[tuple[str, int]]) -> None:
    """Whatever happens: at most the bound, never a state of another position nor behind the cut."""
    kept, end = Checkpoints(), 0
    for what, amount in steps:
        if what == "cut":
            end, state = kept.latest(max(0, end - amount))
            assert state == (end or None)
            continue
        if what == "pass" and end:
            kept.pass_by(end, end)
        end += amount if what == "pass" else 0
        if what == "keep" and end:
            kept.keep(end, end)
        assert len(kept) <= MAX_KEPT + 1
