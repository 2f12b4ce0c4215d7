"""Comparing two reports: a change is named only where the trials of both runs leave no doubt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.bench.compare import Verdict, compare, judge, read_report
from pie_mlx.bench.report import Report, Row, Trials
from pie_mlx.errors import UsageError


def report(*rows: Row, cpu: str = "one") -> dict[str, Any]:
    """Return the JSON of a report."""
    return json.loads(json.dumps(Report({"cpu": cpu}, {"mlx": "1"}, {"model": "m"}, rows).to_json()))  # type: ignore[no-any-return]


def row(
    ours: tuple[float, ...], theirs: tuple[float, ...] | None = None, *, case: str = "a", rises: bool = True
) -> Row:
    """Return a row of these trials."""
    return Row("s", case, "u", Trials(ours), Trials(theirs) if theirs else None, None, higher_is_better=rises)


@pytest.mark.parametrize(
    ("old", "new", "rises", "verdict"),
    [
        ((10.0, 10.2), (12.0, 12.1), True, Verdict.FASTER),
        ((10.0, 10.2), (12.0, 12.1), False, Verdict.SLOWER),
        ((10.0, 10.2), (8.0, 8.1), True, Verdict.SLOWER),
        ((10.0, 10.2), (8.0, 8.1), False, Verdict.FASTER),
        ((10.0, 12.0), (11.9, 14.0), True, Verdict.NOISE),
        ((10.0, 10.0), (10.2, 10.2), True, Verdict.NOISE),
        ((10.0,), (20.0, 20.0), True, Verdict.UNKNOWN),
    ],
)
def test_verdicts(old: tuple[float, ...], new: tuple[float, ...], *, rises: bool, verdict: Verdict) -> None:
    """Ranges that touch, small changes and single trials are no change."""
    assert judge(old, new, rises=rises) is verdict


@given(values=st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=2, max_size=6), rises=st.booleans())
def test_a_report_never_differs_from_itself(values: list[float], *, rises: bool) -> None:
    """Whatever the trials, the same trials are noise."""
    assert judge(values, values, rises=rises) is Verdict.NOISE


def test_a_slower_machine_is_not_a_slower_engine() -> None:
    """With a baseline the ratios are compared: both sides at half speed is no change."""
    fast, slow = row((20.0, 21.0), (10.0, 10.5)), row((10.0, 10.5), (5.0, 5.25))
    (change,) = compare(report(fast), report(slow)).changes
    assert (change.by, change.verdict, change.change) == ("ratio", Verdict.NOISE, 1.0)


def test_a_latency_that_fell_is_faster_and_its_change_is_above_one() -> None:
    """The change points the same way as the verdict."""
    (change,) = compare(report(row((4.0, 4.1), rises=False)), report(row((2.0, 2.05), rises=False))).changes
    assert change.verdict is Verdict.FASTER
    assert change.change == pytest.approx(2.0)


def test_what_cannot_be_compared_is_said() -> None:
    """Rows of one report alone and another machine are noted, not passed over."""
    comparison = compare(
        report(row((1.0, 1.0)), cpu="one"), report(row((1.0, 1.0)), row((1.0, 1.0), case="b"), cpu="two")
    )
    assert len(comparison.changes) == 1
    assert "1 rows are in one of the reports only" in comparison.notes
    assert "cpu was one, is two" in comparison.notes


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "pie-mlx.bench/0"}', '{"schema": "pie-mlx.bench/1", "rows": [{"suite": "s"}]}']
)
def test_a_file_that_is_no_report_is_refused(text: str, tmp_path: Path) -> None:
    """Before anything is measured, with the command that makes one."""
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_report(path)
    assert "--json" in str(caught.value.hint)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(UsageError, match=r"missing\.json"):
        read_report(tmp_path / "missing.json")


def test_a_report_that_was_written_is_read_back(tmp_path: Path) -> None:
    """A run can be compared with its own file."""
    told = report(row((1.0, 1.1), (1.0, 1.0)))
    path = tmp_path / "old.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    assert read_report(path) == told
