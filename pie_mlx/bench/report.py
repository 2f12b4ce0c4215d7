"""What a measurement is, and the report it goes into (``pie-mlx.bench/1``)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pie_mlx.errors import Fact

SCHEMA = "pie-mlx.bench/1"
DRIFT_LIMIT = 1.25
"""Last over first trial: beyond this, the machine throttled or had other work."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Raw values of one side, in the order they were taken."""

    values: tuple[float, ...]
    peak_bytes: int | None = None
    """The device's peak memory in any of the trials; None where it was not read."""

    def __post_init__(self) -> None:
        """A measurement without a trial would be an empty success."""
        assert self.values, "a measurement has at least one trial"

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(max - min) / median: how noisy the machine was."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    @property
    def drift(self) -> float:
        """Last over first trial: far from 1 means that the machine throttled or was shared."""
        return self.values[-1] / self.values[0] if self.values[0] else 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One case of a suite: our figure, the baseline's, and their ratio (above 1 is better for us)."""

    suite: str
    case: str
    unit: str
    ours: Trials
    baseline: Trials | None
    baseline_name: str | None = None
    higher_is_better: bool = True
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """What makes the figure checkable: token counts, KV bytes, which attention path ran, agreement."""

    @property
    def ratio(self) -> float | None:
        """Median of the pairwise ratios, so that a slow minute hits both sides; None without a baseline."""
        if self.baseline is None:
            return None
        pairs = zip(self.ours.values, self.baseline.values, strict=True)
        return statistics.median(ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs)

    def to_json(self) -> dict[str, Fact]:
        """Return the row as the report holds it."""
        return {
            "suite": self.suite,
            "case": self.case,
            "ours": self.ours.median,
            "baseline": None if self.baseline is None else self.baseline.median,
            "baseline_name": self.baseline_name,
            "ratio": self.ratio,
            "unit": self.unit,
            "higher_is_better": self.higher_is_better,
            "n": len(self.ours.values),
            "min": min(self.ours.values),
            "median": self.ours.median,
            "max": max(self.ours.values),
            "trials": list(self.ours.values),
            "baseline_trials": None if self.baseline is None else list(self.baseline.values),
            "drift": self.ours.drift,
            "baseline_drift": None if self.baseline is None else self.baseline.drift,
            "peak_bytes": self.ours.peak_bytes,
            "baseline_peak_bytes": None if self.baseline is None else self.baseline.peak_bytes,
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run: the machine, the versions, the settings, and all rows."""

    machine: Mapping[str, Fact]
    versions: Mapping[str, Fact]
    settings: Mapping[str, Fact]
    rows: Sequence[Row]
    unmeasured: Sequence[str] = ()
    """Titles of the cases that were asked for and are not in ``rows``, because the run was ended before."""

    def cautions(self) -> list[str]:
        """Say where a figure is not to be trusted: drift, tokens that differ, a bandwidth that is too low."""
        notes = []
        if self.unmeasured:
            notes.append(f"not measured: {len(self.unmeasured)} cases, from {self.unmeasured[0]!r} on")
        for row in self.rows:
            sides = [("", row.ours), *([("the baseline of ", row.baseline)] if row.baseline else [])]
            for whose, trials in sides:
                if not 1 / DRIFT_LIMIT <= trials.drift <= DRIFT_LIMIT:
                    first, last = trials.values[0], trials.values[-1]
                    notes.append(f"{whose}{row.case!r} drifted from {first:.3g} to {last:.3g} {row.unit}")
            equal = row.facts.get("equal_tokens")
            if isinstance(equal, float) and equal < 1:
                notes.append(f"{row.case!r}: {equal:.1%} of the tokens come before a row's first difference")
        shares = [row.facts.get(name) for row in self.rows for name in ("roofline_share", "baseline_roofline_share")]
        if any(isinstance(share, float) and share > 1 for share in shares):
            notes.append("more than all of the bandwidth was used: it was measured while the machine did other work")
        return notes

    def to_json(self) -> dict[str, Fact]:
        """Return the report as one JSON object."""
        return {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "settings": dict(self.settings),
            "rows": [row.to_json() for row in self.rows],
            "unmeasured": list(self.unmeasured),
        }
