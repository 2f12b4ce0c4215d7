"""A benchmark in the terminal: the bar while it runs, its tables and small bars afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pie_mlx.cli.clean import one_line
from pie_mlx.cli.figures import format_bytes

if TYPE_CHECKING:
    from pie_mlx.bench.cases import Case
    from pie_mlx.bench.compare import Comparison
    from pie_mlx.bench.report import Row
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout

_HALF = 8
"""Cells on each side of 1×; each doubling takes two."""
_BAR_HEAD = f"{'behind ':>{_HALF}}│{' ahead':<{_HALF}}"
_MARKS = {"faster": "▲", "slower": "▼", "within noise": "·", "one trial, no verdict": "?"}


class CaseBar:
    """How far a run is: a bar for a person, a line a case for a file, and each figure as soon as it is there."""

    def __init__(self, stderr: Stderr, cases: Sequence[Case]) -> None:
        """Show on ``stderr`` how far ``cases`` are, within its ``with``."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._stderr = stderr
        self._cases = cases
        self._begun: list[Case] = []
        self._is_shown = stderr.console.is_terminal
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bars = Progress(*columns, console=stderr.console, transient=True, disable=not self._is_shown)
        self._bar = self._bars.add_task("", total=len(cases))

    def __enter__(self) -> Self:
        """Begin with the bar; a file gets none."""
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bars.stop()

    @property
    def unfinished(self) -> list[str]:
        """Titles of the case that is being measured and of those that come after it."""
        return [case.title for case in self._cases[max(len(self._begun) - 1, 0) :]]

    def begin(self, case: Case) -> None:
        """Name the case that begins."""
        self._bars.update(self._bar, description=one_line(case.title), completed=len(self._begun))
        self._begun.append(case)
        if not self._is_shown:
            self._stderr.line(f"{len(self._begun)}/{len(self._cases)} {case.title}")

    def trial(self, number: int, total: int) -> None:
        """Say which trial of the case begins; 0 is a warm-up."""
        words = f"trial {number} of {total}" if number else "warm-up"
        if self._begun:
            self._bars.update(self._bar, description=one_line(f"{words} · {self._begun[-1].title}"))

    def stop(self) -> None:
        """Say why the end may take its time after Ctrl-C."""
        self._bars.stop()
        self._stderr.note("stopping as soon as the device has finished its step (Ctrl-C again ends at once)")

    def show(self, row: Row) -> None:
        """Tell a figure that is there: the table comes minutes later, or never."""
        ratio = "" if row.ratio is None else f" · {row.ratio:.2f}×"
        words = f"{row.suite}: {row.case}" if self._is_shown else f"  {row.case}"
        self._stderr.line(f"{words} · {_figure(row.ours.median)} {row.unit}{ratio}", style="dim")


def show_report(stdout: Stdout, report: Mapping[str, Any], *, explain: bool) -> None:
    """Write machine and settings, then a table a suite; with ``explain`` what the planner weighed."""
    stdout.pairs(_about(report))
    for suite in dict.fromkeys(row["suite"] for row in report["rows"]):
        rows = [row for row in report["rows"] if row["suite"] == suite]
        stdout.line()
        header = (suite, "pie-mlx", "baseline", "ratio", _BAR_HEAD, "K/V", "K/V baseline")
        stdout.table(header, map(_cells, rows), right=(1, 2, 3, 5, 6))
        if explain:
            stdout.line()
            for line in _explanations(rows):
                stdout.line(line)


def _about(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was measured, where and how."""
    machine, versions, settings = report["machine"], report["versions"], report["settings"]
    against = f"{settings['baseline']} {versions['mlx-lm']}" if settings["baseline"] else "none"
    return [
        ("model", f"{settings['model']} ({machine['dtype']} on {machine['device']})"),
        (
            "machine",
            f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0] if machine['load'] else '–'}",
        ),
        ("memory", f"reads {format_bytes(int(machine['read_bytes_per_s']))}/s, measured; energy: {machine['energy']}"),
        ("baseline", against),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("trials", f"{settings['trials']}, ours and the baseline's in turn, after a warm-up that is dropped"),
        ("decoding", f"{settings['decode_tokens']} tokens, greedy, end of sequence ignored, prefix cache off"),
    ]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row's cells."""
    facts, unit, ratio = row["facts"], row["unit"], row["ratio"]
    name = f"{row['case']}, {row['baseline_name']}" if row["suite"] in ("tot", "pressure") and ratio else row["case"]
    return (
        name,
        f"{_figure(row['ours'])} {unit}",
        "–" if row["baseline"] is None else f"{_figure(row['baseline'])} {unit}",
        "–" if ratio is None else f"{ratio:.2f}×",
        "" if ratio is None else ratio_bar(ratio),
        format_bytes(facts.get("kv_bytes")),
        format_bytes(facts.get("baseline_kv_bytes")),
    )


def ratio_bar(ratio: float) -> str:
    """Draw a ratio as a bar from 1× to the right where we are ahead, to the left where we are behind."""
    cells = min(_HALF, round(abs(math.log2(ratio)) * 2))
    left, right = ("", "█" * cells) if ratio >= 1 else ("█" * cells, "")
    return f"{left:>{_HALF}}│{right:<{_HALF}}"


def _figure(value: float) -> str:
    """Return a number with three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _explanations(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how the last step of each case attended, and what the planner weighed."""
    from pie_mlx.bench.explain import choice_line

    for row in rows:
        facts = row["facts"]
        if "attention" not in facts:
            continue
        yield f"{row['case']}"
        yield f"  ran: {facts['attention']}"
        line = choice_line(facts.get("choice"))
        if line is not None:
            yield f"  chose {line}"


def show_comparison(stdout: Stdout, comparison: Comparison) -> None:
    """Write what changed since the old report; a word and a sign say it, a colour only repeats it."""
    stdout.line()
    rows = [
        (
            f"{change.suite}: {change.case}",
            f"{_figure(change.old)}{'×' if change.by == 'ratio' else ''}",
            f"{_figure(change.new)}{'×' if change.by == 'ratio' else ''}",
            f"{(change.change - 1) * 100:+.1f} %",
            f"{_MARKS[str(change.verdict)]} {change.verdict}",
        )
        for change in comparison.changes
    ]
    stdout.table(("compared", "old", "new", "change", "verdict"), rows, right=(1, 2, 3))
