"""A benchmark in the terminal: the bar while it runs, its tables and small bars afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pie_mlx.cli.clean import one_line
from pie_mlx.cli.figures import format_bytes

if TYPE_CHECKING:
    from pie_mlx.bench.cases import Case
    from pie_mlx.bench.compare import Comparison
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout

_HALF = 8
"""Cells on each side of 1×; each doubling takes two."""
_BAR_HEAD = f"{'behind ':>{_HALF}}│{' ahead':<{_HALF}}"
_MARKS = {"faster": "▲", "slower": "▼", "within noise": "·", "one trial, no verdict": "?"}


@contextmanager
def showing_cases(stderr: Stderr, num_cases: int) -> Iterator[Callable[[Case], None]]:
    """Yield what is told of each case before it begins: a bar for a person, a line a case for a file."""
    if not stderr.console.is_terminal:
        numbers = iter(range(1, num_cases + 1))
        yield lambda case: stderr.line(f"{next(numbers)}/{num_cases} {case.title}")
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=stderr.console, transient=True) as bars:
        task = bars.add_task("", total=num_cases)
        begun: list[Case] = []

        def begin(case: Case) -> None:
            bars.update(task, description=one_line(case.title), completed=len(begun))
            begun.append(case)

        yield begin


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
