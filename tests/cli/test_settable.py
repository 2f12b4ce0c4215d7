"""The table of a set: what was reached, beside chance; parts that are missing are said, not zero."""

from __future__ import annotations

from dataclasses import replace

from pie_mlx.cli.settable import HEADER, set_notes, set_rows
from pie_mlx.search.baselines import Baselines
from pie_mlx.search.node import TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.rivals import Rival
from pie_mlx.search.sets import SetResult

RESULT = SetResult(
    task="game24",
    rows=(),
    params=SearchParams(propose="legal", beam=5),
    wanted=0,
    first=0.25,
    any=0.5,
    mean=0.125,
    invalid=0.0,
    unparsed=None,
    duplicates=0.1,
    failed=0,
    tokens=TokenCounts(),
    calls=1234,
    wall_s=2.0,
    auc=0.61,
    regret=None,
    baselines=Baselines(((1, 0.006), (100, 0.343)), 5, 0.15, None, 1.0),
    rivals=(Rival("best_of_n", 0, 0.1, 0.2, 0.1, 900, 1000, 12, 3.0),),
)


def test_the_search_stands_beside_rivals_and_chance() -> None:
    """One row each, in percent, costs where there are any; a baseline that a task lacks is left out."""
    rows = set_rows(RESULT)
    assert all(len(row) == len(HEADER) for row in rows)
    assert rows[0] == ("beam 5, legal moves", "25.0 %", "50.0 %", "12.5 %", "0", "1,234", "2.0 s")
    assert rows[1][:4] == ("best of n", "10.0 %", "20.0 %", "10.0 %")
    assert [row[:2] for row in rows[2:]] == [
        ("beam 5, random values", "15.0 %"),
        ("beam 5, known truth", "100.0 %"),
        ("random play, best of 1", "0.6 %"),
        ("random play, best of 100", "34.3 %"),
    ]


def test_what_is_not_known_is_a_dash() -> None:
    """None is never shown as 0."""
    notes = dict(set_notes(RESULT))
    assert "– not parsed" in notes["thoughts"]
    assert "AUC 0.61" in notes["scorer"]
    assert "regret –" in notes["scorer"]


def test_a_partial_set_says_so() -> None:
    """Interrupted sets and failed rows are named."""
    notes = dict(set_notes(replace(RESULT, wanted=30, failed=2)))
    assert notes["set"] == "0 of 30 × game24: not complete · 2 failed"


def test_a_steered_set_is_no_result_of_the_model() -> None:
    """The oracle is printed."""
    assert "oracle" in dict(set_notes(replace(RESULT, params=SearchParams(oracle=True))))
