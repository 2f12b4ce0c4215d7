"""How many branches fit is estimated before any starts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.search.concurrency import estimate, waves


def test_the_peak_is_prefix_and_branches_and_judging_forks() -> None:
    """100 shared tokens, 6 branches of 64 tokens, judging suffixes of 20, pages of 16."""
    need = estimate(prompt_tokens=100, branches=6, thought_tokens=64, judge_tokens=20, page_size=16)
    assert need.peak == 7 + 6 * ((4 + 1) + (2 + 1))
    assert need.least == 7 + 5 + 3
    assert need.fitting(55) == 6
    assert need.fitting(54) == 5
    assert need.fitting(0) == 1


@given(num=st.integers(0, 200), size=st.integers(1, 50))
def test_waves_cover_all_branches_in_order(num: int, size: int) -> None:
    """Every branch is in one group; groups differ by at most one and are never larger than asked."""
    groups = waves(num, size)
    assert [i for group in groups for i in group] == list(range(num))
    assert all(0 < len(group) <= size for group in groups)
    assert not groups or max(map(len, groups)) - min(map(len, groups)) <= 1
