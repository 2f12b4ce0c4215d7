"""Measures of a run, and of scorers where the truth is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.metrics import auc, duplicate_share, mean_regret, measure, regret
from pie_mlx.search.trace import Event, Finished, FinishReason, NodeDone, NodeStarted, PagesRead, Trace, apply
from pie_mlx.search.tree import ROOT, NodeId, PoolCounts, TokenCounts, Tree


def test_a_run_is_measured_from_its_events(recorded: Callable[..., Trace]) -> None:
    """Counts, shares, tokens and pages are those that the events add up to."""
    m = measure(recorded().events)
    assert (m.finish_reason, m.solved, m.solved_any) == ("answer", True, True)
    assert (m.num_nodes, m.num_expanded, m.num_pruned, m.num_duplicates, m.num_failed) == (7, 3, 1, 1, 0)
    assert (m.num_thoughts, m.unparsed_share, m.invalid_share) == (6, 1 / 6, 0.0)
    assert m.tokens == TokenCounts(prompt=720, cached=650, completion=60)
    assert m.num_calls == 7
    assert m.prefill_saved == 650 / 720
    assert (m.peak_pages, m.freed_pages) == (8, 2)
    assert m.wall_s == len(recorded().events)
    assert m.tokens_per_s == 60 / m.wall_s


def test_repetition_among_siblings_is_a_share_of_the_thoughts() -> None:
    """Equal up to case and punctuation counts, a cousin's words do not, and no thought gives no share."""
    tree = Tree()
    assert duplicate_share(tree) is None
    for event in (
        NodeStarted(node=ROOT),
        NodeDone(node=ROOT),
        *_said("0.0", "Think of light."),
        *_said("0.1", "think of light"),
        *_said("0.2", "Look up"),
        *_said("0.2.0", "Think of light."),
    ):
        apply(tree, event)
    assert duplicate_share(tree) == 1 / 4


def _said(node: str, text: str) -> list[Event]:
    """Return the events of one thought."""
    return [NodeStarted(node=NodeId(node)), NodeDone(node=NodeId(node), text=text)]


def test_page_means_are_weighted_by_time(recorded: Callable[..., Trace]) -> None:
    """Three seconds of 2 pages and one of 10 are 4 on average, shared where more is viewed than held."""
    one, two = PoolCounts(private=2, viewed=2), PoolCounts(private=4, shared=6, viewed=40)
    events: list[Event] = [PagesRead(pool=one), PagesRead(pool=one), PagesRead(pool=one), PagesRead(pool=two)]
    m = measure(recorded([*events, Finished(reason=FinishReason.UNSOLVED)]).events)
    assert m.mean_pages == (2 * 3 + 10) / 4
    assert m.sharing_ratio == (2 * 3 + 40) / (2 * 3 + 10)


def test_an_empty_run_has_no_shares_rather_than_zero() -> None:
    """What was not measured is None."""
    m = measure([])
    assert (m.finish_reason, m.solved, m.solved_any, m.unparsed_share) == (None, None, None, None)
    assert (m.peak_pages, m.sharing_ratio, m.tokens_per_s, m.prefill_saved) == (None, None, None, None)
    assert m.to_json()["tokens"] == {"prompt": 0, "cached": 0, "completion": 0}


def test_auc_is_the_share_of_pairs_in_order() -> None:
    """1 is perfect, 0 is upside down, ties are a half, a missing value is below all."""
    assert auc([0.9, 0.8, 0.1], [True, True, False]) == 1.0
    assert auc([0.1, 0.9], [True, False]) == 0.0
    assert auc([0.5, 0.5], [True, False]) == 0.5
    assert auc([None, 0.0], [True, False]) == 0.0
    assert auc([None, None], [True, False]) == 0.5
    assert auc([0.3, 0.4], [True, True]) is None


def test_regret_says_whether_the_kept_ones_can_still_win() -> None:
    """Regret is 1 only where a solvable state was there and was not kept."""
    assert regret([0.9, 0.1], [False, True], keep=1) == 1.0
    assert regret([0.9, 0.1], [False, True], keep=2) == 0.0
    assert regret([0.9, 0.1], [False, False], keep=1) == 0.0
    assert regret([None, 0.0], [True, False], keep=1) == 1.0
    assert regret([0.5, 0.5], [True, False], keep=1) == 0.0
    assert mean_regret([([0.9, 0.1], [False, True]), ([0.9], [True]), ([0.9], [False])], keep=1) == 0.5
    assert mean_regret([], keep=1) is None


def test_labels_must_match_the_values() -> None:
    """Lists of different lengths are a mistake of the caller."""
    with pytest.raises(InvalidParameter):
        auc([0.1], [True, False])
    with pytest.raises(InvalidParameter):
        regret([0.1], [True], keep=0)
