"""Two reports side by side: what has changed beyond the noise of either.

A row with a baseline is judged by its ratios, pair by pair, which a slower or busier machine hardly moves; a
row without one by its own values. A change counts where the ranges of all trials do not touch and the medians
differ by more than 3 %: with the few trials of a benchmark, a test of means would claim more than they know.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pie_mlx.bench.report import SCHEMA
from pie_mlx.errors import Fact, UsageError

LEAST_CHANGE = 0.03
"""Smaller changes are noise, whatever the trials say."""


class Verdict(StrEnum):
    """What a comparison says of a row."""

    FASTER = "faster"
    SLOWER = "slower"
    NOISE = "within noise"
    UNKNOWN = "one trial, no verdict"


@dataclass(frozen=True, slots=True)
class Change:
    """One row of both reports."""

    suite: str
    case: str
    by: str
    """``ratio`` to the baseline, or the row's own ``value``."""
    old: float
    new: float
    change: float
    """New over old, so turned that above 1 is better."""
    verdict: Verdict

    def to_json(self) -> dict[str, Fact]:
        """Return it as the report holds it."""
        return {
            "suite": self.suite,
            "case": self.case,
            "by": self.by,
            "old": self.old,
            "new": self.new,
            "change": self.change,
            "verdict": str(self.verdict),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows that both reports have, and what keeps them from being quite comparable."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Fact]:
        """Return it as the report holds it."""
        return {"changes": [change.to_json() for change in self.changes], "notes": list(self.notes)}


def read_report(path: Path) -> dict[str, Any]:
    """Read a report that ``pie-mlx bench --json`` wrote.

    Raises:
        UsageError: there is no such file, or it is not a report of this version.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a report: {error}", "pie-mlx bench --json > old.json makes one") from error
    if not isinstance(report, dict) or report.get("schema") != SCHEMA or not _has_rows(report):
        raise UsageError(f"{path}: not a report of the form {SCHEMA}", "pie-mlx bench --json > old.json makes one")
    return report


def _has_rows(report: Mapping[str, Any]) -> bool:
    """Whether every row has what a comparison reads."""
    rows = report.get("rows")
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and {"suite", "case", "higher_is_better"} <= row.keys()
        and isinstance(row.get("trials"), list)
        and row["trials"]
        for row in rows
    )


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Compare the rows that both reports have, in the order of the new one."""
    known = {(row["suite"], row["case"]): row for row in old["rows"]}
    pairs = [(known.get((row["suite"], row["case"])), row) for row in new["rows"]]
    changes = tuple(_change(before, after) for before, after in pairs if before is not None)
    return Comparison(changes, tuple(_notes(old, new, len(changes))))


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    """Judge one row."""
    by = "ratio" if old.get("baseline_trials") and new.get("baseline_trials") else "value"
    before, after = _scores(old, by), _scores(new, by)
    rises = by == "ratio" or bool(new["higher_is_better"])
    old_median, new_median = statistics.median(before), statistics.median(after)
    change = new_median / old_median if rises else old_median / new_median
    return Change(new["suite"], new["case"], by, old_median, new_median, change, judge(before, after, rises=rises))


def _scores(row: Mapping[str, Any], by: str) -> list[float]:
    """Return what the row is judged by, trial by trial; ratios are above 1 where ours is better."""
    ours: list[float] = row["trials"]
    if by == "value":
        return ours
    pairs = zip(ours, row["baseline_trials"], strict=True)
    return [mine / theirs if row["higher_is_better"] else theirs / mine for mine, theirs in pairs]


def judge(old: Sequence[float], new: Sequence[float], *, rises: bool) -> Verdict:
    """Return what the trials say; ``rises``: larger is better."""
    if min(len(old), len(new)) < 2:
        return Verdict.UNKNOWN
    change = statistics.median(new) / statistics.median(old)
    if abs(change - 1) <= LEAST_CHANGE or not (min(new) > max(old) or max(new) < min(old)):
        return Verdict.NOISE
    return Verdict.FASTER if (change > 1) == rises else Verdict.SLOWER


def _notes(old: Mapping[str, Any], new: Mapping[str, Any], num_common: int) -> list[str]:
    """Say what differs between the two runs besides the figures."""
    notes = []
    left_out = len(new["rows"]) + len(old["rows"]) - 2 * num_common
    if left_out:
        notes.append(f"{left_out} rows are in one of the reports only")
    for part, keys in (
        ("machine", ("cpu", "cores", "device", "dtype", "blas")),
        ("settings", ("model", "decode_tokens", "page_size", "prefill_chunk", "max_batch")),
        ("versions", ("pie-mlx", "mlx", "mlx-lm")),
    ):
        before, after = old.get(part) or {}, new.get(part) or {}
        notes += [
            f"{key} was {before.get(key)}, is {after.get(key)}" for key in keys if before.get(key) != after.get(key)
        ]
    return notes
