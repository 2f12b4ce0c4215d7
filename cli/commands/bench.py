"""``pie-mlx bench``: measure the engine, beside mlx-lm on the same weights, in one process and one run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, engine_settings, load_config, model_name
from pie_mlx.errors import InvalidParameter, PieError, UsageError

if TYPE_CHECKING:
    from pie_mlx.bench.cases import Case
    from pie_mlx.bench.compare import Comparison
    from pie_mlx.bench.report import Report, Row
    from pie_mlx.bench.setting import BenchSetting
    from pie_mlx.cli.benchview import CaseBar
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.config import Settings
    from pie_mlx.errors import Fact


class Baseline(StrEnum):
    """Whom to measure against."""

    mlx_lm = "mlx-lm"
    none = "none"


@dataclass(frozen=True)
class BenchFlags(Group):
    """What is measured, and what becomes of it."""

    panel: ClassVar[str] = "Measuring"

    baseline: Annotated[Baseline, typer.Option(help="Measure mlx-lm beside the engine, turn by turn.")] = (
        Baseline.mlx_lm
    )
    trials: Annotated[int, typer.Option(help="Trials of each case; a warm-up before them is dropped.")] = 5
    tokens: Annotated[int, typer.Option(help="Tokens that every stream decodes.")] = 32
    delay: Annotated[float, typer.Option(help="Seconds between trials, for a machine that throttles.")] = 0.0
    only: Annotated[str | None, typer.Option(help="Only cases whose name contains this.")] = None
    list_cases: Annotated[bool, typer.Option("--list", help="Show the cases and measure nothing.")] = False
    explain: Annotated[bool, typer.Option("--explain", help="Show what the planner weighed for each case.")] = False
    html: Annotated[Path | None, typer.Option(help="Write the report here, as one page.")] = None
    compare: Annotated[Path | None, typer.Option(help="Say what changed beyond noise since this JSON report.")] = None


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            help="decode, prefill, fork, tot, pressure, chat, all (default), core: the stated figures, or quick: tiny.",
            show_default=False,
        ),
    ] = None,
    *,
    flags: BenchFlags,
    engine: EngineFlags,
    output: OutputFlags,
) -> None:
    """Measure speed and memory on this machine, beside mlx-lm."""
    from pie_mlx.bench.compare import compare, read_report
    from pie_mlx.bench.suites import select
    from pie_mlx.cli.benchview import show_comparison, show_report
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout

    settings = load_config(engine, output).settings
    _check(flags)
    cases = select(suites or [], only=flags.only)
    stdout, stderr = Stdout(settings.color), Stderr(settings.color)
    if flags.list_cases:
        for case in cases:
            stdout.line(case.title)
        return
    old = None if flags.compare is None else read_report(flags.compare)
    # The report comes before the engine is closed: a device that is busy may keep that waiting.
    with _measured(settings, flags, cases, stderr) as (report, ended_by):
        told = report.to_json() | _failure(ended_by)
        comparison = None if old is None else compare(old, told)
        if flags.html is not None:
            _write_page(flags.html, report)
        if output.json:
            stdout.json(told if comparison is None else {**told, "compare": comparison.to_json()})
        else:
            show_report(stdout, told, explain=flags.explain)
            if comparison is not None:
                show_comparison(stdout, comparison)
        _say_what_to_mind(stderr, report, comparison, flags)
    if isinstance(ended_by, PieError) and output.json:
        # The one object on stdout has said it.
        raise typer.Exit(ended_by.exit_code)
    if ended_by is not None:
        raise ended_by


def _failure(ended_by: BaseException | None) -> dict[str, Fact]:
    """Return what the report says of the failure that ended it, if it was one."""
    from pie_mlx.cli.diagnostics import Report as Failure

    return Failure.of(ended_by).to_json() if isinstance(ended_by, PieError) else {}


def _check(flags: BenchFlags) -> None:
    """Refuse amounts that measure nothing, and a page that cannot be written, before the model is loaded.

    Raises:
        InvalidParameter, UsageError: as their names say.
    """
    if flags.trials < 1:
        raise InvalidParameter("--trials", flags.trials, "a whole number from 1 up")
    if flags.tokens < 2:
        raise InvalidParameter("--tokens", flags.tokens, "a whole number from 2 up: the first token is no decoding")
    if not 0 <= flags.delay < float("inf"):
        raise InvalidParameter("--delay", flags.delay, "a number of seconds from 0 up")
    if flags.html is not None and not flags.html.absolute().parent.is_dir():
        raise UsageError(f"{flags.html}: there is no such folder")


@contextmanager
def _measured(
    settings: Settings, flags: BenchFlags, cases: list[Case], stderr: Stderr
) -> Iterator[tuple[Report, BaseException | None]]:
    """Load the model and measure, with a bar on stderr; yield also what ended it early, if there is a figure yet.

    Raises:
        PieError, KeyboardInterrupt, SystemExit: it was ended before the first figure.
    """
    from pie_mlx.bench.machine import load_average, machine_facts, setting_facts, thermal, version_facts
    from pie_mlx.bench.report import Report
    from pie_mlx.bench.setting import BenchOptions, open_setting
    from pie_mlx.cli.benchview import CaseBar
    from pie_mlx.models.fetch import locate

    bar = CaseBar(stderr, cases)
    options = BenchOptions(
        flags.trials,
        flags.tokens,
        flags.delay,
        has_baseline=flags.baseline is Baseline.mlx_lm,
        adapter=None if settings.adapter is None else Path(settings.adapter).expanduser(),
        on_trial=bar.trial,
    )
    folder = locate(model_name(settings))
    with ExitStack() as stack:
        with stderr.waiting(f"loading {model_name(settings)}"):
            setting = stack.enter_context(open_setting(folder, engine_settings(settings), options))
        machine = machine_facts(setting)
        rows, ended_by = _take_rows(setting, cases, bar)
        machine |= {"load_after": load_average(), "thermal_after": thermal()}
        unmeasured = bar.unfinished if ended_by is not None else []
        yield Report(machine, version_facts(), setting_facts(setting), rows, unmeasured), ended_by


def _take_rows(setting: BenchSetting, cases: list[Case], bar: CaseBar) -> tuple[list[Row], BaseException | None]:
    """Measure the cases; a failure or a stop costs the case that it meets and those after it, not those before."""
    from pie_mlx.bench.suites import run

    rows: list[Row] = []
    with bar:
        try:
            for row in run(setting, cases, bar.begin):
                rows.append(row)
                bar.show(row)
        except (PieError, KeyboardInterrupt, SystemExit) as error:
            if isinstance(error, KeyboardInterrupt):
                bar.stop()
            if not rows:
                raise
            return rows, error
    if not rows:
        raise UsageError("these cases measure nothing but the baseline", "leave out --baseline none")
    return rows, None


def _write_page(path: Path, report: Report) -> None:
    """Write the report as a page.

    Raises:
        UsageError: the file cannot be written.
    """
    from pie_mlx.bench.html import to_html

    try:
        path.write_text(to_html(report.to_json()), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _say_what_to_mind(stderr: Stderr, report: Report, comparison: Comparison | None, flags: BenchFlags) -> None:
    """Tell what keeps the figures from being quite what they seem."""
    for note in report.cautions():
        stderr.note(note)
    for note in comparison.notes if comparison is not None else ():
        stderr.note(f"not the same run: {note}")
    if flags.html is not None:
        stderr.labelled("page", str(flags.html))
