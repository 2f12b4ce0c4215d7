"""Legal moves are ranked by their share of the model's probability, whatever the order in which they are asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from pie_mlx.errors import DeviceFailed
from pie_mlx.search.node import NodeId, parent_id
from pie_mlx.search.scoring.base import Subject
from pie_mlx.search.scoring.move import MoveReading, MoveScorer, Ranking

MOVES = {"0.0": "1 + 2 = 3", "0.1": "2 - 1 = 1", "0.2": "1 * 2 = 2"}
PROBS = {"1 + 2 = 3": 0.2, "2 - 1 = 1": 0.05, "1 * 2 = 2": 0.25}


def scorer(*readings: MoveReading, asked: list[Ranking] | None = None) -> MoveScorer:
    """Return a scorer whose reader answers with ``readings``."""

    def rank(rankings: Sequence[Ranking]) -> list[MoveReading]:
        if asked is not None:
            asked.extend(rankings)
        return list(readings)

    return MoveScorer(lambda s: parent_id(s.node) or NodeId("0"), lambda s: MOVES[s.node], rank)


def subjects(*nodes: str) -> list[Subject]:
    """Return nodes as the scorer sees them."""
    return [Subject(NodeId(node), "", None, "", ()) for node in nodes]


READING = MoveReading({text: math.log(p) for text, p in PROBS.items()})
NO_JUDGE: Any = None


@pytest.mark.parametrize("order", [("0.0", "0.1", "0.2"), ("0.2", "0.0", "0.1"), ("0.1",)])
def test_a_move_s_value_is_its_share_and_does_not_depend_on_the_order(order: tuple[str, ...]) -> None:
    """Shares of 0.5: 0.4, 0.1 and 0.5; the mass is what the model gives to legal moves at all."""
    expected = {"0.0": 0.4, "0.1": 0.1, "0.2": 0.5}
    for node, score in zip(order, scorer(READING).score(subjects(*order), NO_JUDGE), strict=True):
        assert score.value == pytest.approx(expected[node])
        assert score.mass == pytest.approx(0.5)


def test_siblings_are_read_together() -> None:
    """One question a state, for all its moves."""
    asked: list[Ranking] = []
    scorer(READING, asked=asked).score(subjects("0.0", "0.2"), NO_JUDGE)
    assert asked == [Ranking(NodeId("0"), (NodeId("0.0"), NodeId("0.2")))]


def test_a_move_that_was_not_read_is_not_zero() -> None:
    """No value, which ranks last."""
    reading = MoveReading({"2 - 1 = 1": math.log(0.1)})
    first, second = scorer(reading).score(subjects("0.0", "0.1"), NO_JUDGE)
    assert first.value is None
    assert second.value == 1.0


def test_a_failure_of_the_device_is_kept_apart() -> None:
    """The error is in the score, and the score has no value."""
    score = scorer(MoveReading({}, DeviceFailed("lost"))).score(subjects("0.0"), NO_JUDGE)[0]
    assert score.value is None
    assert score.error is not None
