"""``pie-mlx bench``: refusals before a model is loaded, its tables in a pipe, and its bar for each ratio."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import pytest

from pie_mlx.bench.cases import Case
from pie_mlx.bench.compare import compare
from pie_mlx.bench.report import Report, Row, Trials
from pie_mlx.cli.benchview import CaseBar, ratio_bar, show_comparison, show_report
from pie_mlx.cli.commands.bench import _take_rows
from pie_mlx.cli.diagnostics import Stderr
from pie_mlx.cli.render import Stdout
from pie_mlx.errors import DeviceFailed, Fact, UsageError

if TYPE_CHECKING:
    from pie_mlx.bench.setting import BenchSetting

RunCli: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"

MACHINE: dict[str, Fact] = {
    "cpu": "A processor",
    "cores": 2,
    "device": "cpu",
    "dtype": "float32",
    "load": [1.0, 1.0, 1.0],
    "read_bytes_per_s": 1.5e10,
    "energy": "powermetrics is a tool of macOS",
}
SETTINGS: dict[str, Fact] = {"model": "tiny", "baseline": "mlx-lm", "trials": 2, "decode_tokens": 8}


def report(*trials: float) -> Report:
    """Return a report of one row."""
    choice: Fact = {"chosen": "trees", "us_per_layer": {"each": 90.0, "trees": 12.0}}
    facts: dict[str, Fact] = {
        "kv_bytes": 4_000_000,
        "baseline_kv_bytes": 9_000_000,
        "attention": "a view",
        "choice": choice,
    }
    row = Row("decode", "16 branches", "tok/s", Trials(trials), Trials((10.0, 10.0)), "mlx-lm", facts=facts)
    return Report(MACHINE, {"pie-mlx": "1", "mlx-lm": "2"}, SETTINGS, [row])


def test_the_cases_can_be_listed_without_a_model(here: RunCli) -> None:
    """One a line, by the names that --only looks at; nothing is measured."""
    done = here("bench", "decode", "--list", "--only", "unrelated", "--model", "not-there")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "decode: 2 unrelated contexts of 256 tokens"
    assert done.stderr == ""


@pytest.mark.parametrize(
    "args",
    [
        ("nope",),
        ("quick", "decode"),
        ("decode", "--only", "no such case"),
        ("--trials", "0"),
        ("--tokens", "1"),
        ("--delay", "-1"),
        ("--delay", "nan"),
        ("--compare", "missing.json"),
        ("--html", "no/such/folder/page.html"),
        ("--baseline", "llama.cpp"),
    ],
)
def test_what_has_no_meaning_is_refused_before_a_model_is_loaded(args: tuple[str, ...], here: RunCli) -> None:
    """Exit 2, and with --json one object: a long run must not end in a typo."""
    done = here("bench", *args, "--json", "--model", "not-there")
    assert done.returncode == 2, done.stdout
    assert json.loads(done.stdout)["error"]["code"] in ("usage", "invalid_parameter")


def test_a_model_that_is_not_here_is_exit_3(here: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that gets it."""
    monkeypatch.setenv("PIE_MLX_CACHE_DIR", str(tmp_path / "empty"))
    done = here("bench", "quick", "--model", "smollm2-135m")
    assert done.returncode == 3
    assert "pie-mlx pull smollm2-135m" in done.stderr


def test_a_report_in_a_pipe_is_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures, ratio, memory and the planner's choice, without ANSI."""
    show_report(Stdout(), report(21.0, 19.0).to_json(), explain=True)
    told = capsys.readouterr().out
    assert "\x1b" not in told
    for shown in (
        "16 branches",
        "20.0 tok/s",
        "10.0 tok/s",
        "2.00×",
        "4.0 MB",
        "9.0 MB",
        "ran: a view",
        "chose trees of",
    ):
        assert shown in told, shown


def test_a_comparison_says_its_verdict_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """No meaning by colour alone."""
    old, new = (json.loads(json.dumps(made.to_json())) for made in (report(20.0, 20.2), report(12.0, 12.1)))
    show_comparison(Stdout(), compare(old, new))
    told = capsys.readouterr().out
    assert "▼ slower" in told
    assert "-40" in told


@pytest.mark.parametrize(
    ("ratio", "bar"),
    [
        (1.0, "        │        "),
        (2.0, "        │██      "),
        (0.5, "      ██│        "),
        (1000.0, "        │████████"),
        (0.001, "████████│        "),
    ],
)
def test_a_bar_points_to_the_better_side_and_has_a_fixed_width(ratio: float, bar: str) -> None:
    """Right of 1× is ours; a bar never leaves its column."""
    assert ratio_bar(ratio) == bar


def case(name: str, outcome: Sequence[Row] | BaseException) -> Case:
    """Return a case that gives rows, or ends in an exception."""

    def measure(_setting: BenchSetting) -> Sequence[Row]:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Case("decode", name, measure)


NO_SETTING = cast("BenchSetting", None)  # the cases below look at none
ROW = report(20.0, 20.2).rows[0]


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(143), DeviceFailed("gone")])
def test_an_early_end_costs_no_figure_that_is_there(ending: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures before it are kept and were told; the cases from it on are named as not measured."""
    bar = CaseBar(Stderr(), cases := [case("a", [ROW]), case("b", ending), case("c", [ROW])])
    rows, ended_by = _take_rows(NO_SETTING, cases, bar)
    assert (rows, ended_by) == ([ROW], ending)
    assert bar.unfinished == ["decode: b", "decode: c"]
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == ["1/3 decode: a", "  16 branches · 20.1 tok/s · 2.01×", "2/3 decode: b"]
    assert ("Ctrl-C again" in said[-1]) == isinstance(ending, KeyboardInterrupt)
    told = Report(MACHINE, {}, SETTINGS, rows, bar.unfinished)
    assert told.to_json()["unmeasured"] == ["decode: b", "decode: c"]
    assert told.cautions() == ["not measured: 2 cases, from 'decode: b' on"]


def test_an_end_before_the_first_figure_is_no_report() -> None:
    """There is nothing to keep, so it goes on as what it is."""
    cases = [case("a", KeyboardInterrupt()), case("b", [ROW])]
    with pytest.raises(KeyboardInterrupt):
        _take_rows(NO_SETTING, cases, CaseBar(Stderr(), cases))


def test_cases_without_a_figure_are_no_success() -> None:
    """A case of the baseline alone, with no baseline, measures nothing."""
    cases = [case("a", [])]
    with pytest.raises(UsageError, match="nothing but the baseline"):
        _take_rows(NO_SETTING, cases, CaseBar(Stderr(), cases))
