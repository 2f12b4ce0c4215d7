"""The report: medians, ratios that point the same way, raw trials, and what to be careful about."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.bench.report import SCHEMA, Report, Row, Trials

POSITIVE = st.floats(min_value=1e-3, max_value=1e6)


def row(ours: tuple[float, ...], theirs: tuple[float, ...] | None, *, rises: bool = True, **facts: float) -> Row:
    """Return a row of these trials."""
    baseline = None if theirs is None else Trials(theirs)
    return Row("decode", "a case", "tok/s", Trials(ours), baseline, "mlx-lm", higher_is_better=rises, facts=facts)


def test_a_ratio_above_one_is_better_for_us_whatever_the_unit() -> None:
    """Twice the tokens a second and half the seconds are both 2×."""
    assert row((20.0,), (10.0,)).ratio == 2.0
    assert row((5.0,), (10.0,), rises=False).ratio == 2.0
    assert row((5.0,), None).ratio is None


def test_the_ratio_is_taken_pair_by_pair() -> None:
    """A slow minute hits both halves of a pair; medians of each side would show 1.5× here."""
    assert row((10.0, 1.0, 30.0), (10.0, 1.0, 20.0)).ratio == 1.0


@given(st.lists(POSITIVE, min_size=1, max_size=9))
def test_raw_trials_are_kept_in_order(values: list[float]) -> None:
    """What a median hides can be looked up, and JSON holds it."""
    told = json.loads(json.dumps(row(tuple(values), tuple(values)).to_json()))
    assert told["trials"] == values
    assert told["baseline_trials"] == values
    assert told["min"] <= told["median"] <= told["max"]
    assert told["n"] == len(values)
    assert told["ratio"] == 1.0


def test_drift_is_last_over_first() -> None:
    """Throttling shows as a drift below 1."""
    assert Trials((205.0, 160.0, 149.0)).drift == pytest.approx(149 / 205)


def test_cautions_name_drift_on_either_side_and_tokens_that_differ() -> None:
    """A figure that is not to be trusted is said to be so; a good one is passed over."""
    rows = [
        row((200.0, 100.0), (100.0, 100.0)),
        row((100.0, 101.0), (100.0, 40.0)),
        row((1.0,), (1.0,), equal_tokens=0.5),
        row((1.0,), (1.0,), equal_tokens=1.0, roofline_share=0.9),
        row((1.0,), (1.0,), roofline_share=1.4),
    ]
    notes = Report({}, {}, {}, rows).cautions()
    assert len(notes) == 4
    assert "drifted from 200 to 100" in notes[0]
    assert notes[1].startswith("the baseline of")
    assert "50.0%" in notes[2]
    assert "bandwidth" in notes[3]


def test_a_report_has_the_schema_and_all_its_parts() -> None:
    """What makes two reports comparable is in them."""
    told = Report({"cpu": "x"}, {"mlx": "1"}, {"trials": 2}, [row((1.0,), None)]).to_json()
    assert told["schema"] == SCHEMA
    assert set(told) == {"schema", "machine", "versions", "settings", "rows", "unmeasured"}
