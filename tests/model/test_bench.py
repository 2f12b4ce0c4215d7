"""The benchmark on the real starter model: its structure and its honesty, never its speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.bench.html import to_html
from pie_mlx.bench.machine import machine_facts, setting_facts, version_facts
from pie_mlx.bench.report import Report
from pie_mlx.bench.setting import BenchOptions, open_setting
from pie_mlx.bench.suites import SUITES, run, select
from pie_mlx.engine import EngineSettings

# The whole report is one fixture, and a busy machine takes minutes for it.
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def report(starter: Path) -> dict[str, Any]:
    """Run the quick cases once, with two trials of tiny sizes; the engine is left as it was found."""
    begun: list[str] = []
    with open_setting(starter, EngineSettings(pool_pages=256), BenchOptions(num_trials=2, decode_tokens=4)) as setting:
        rows = list(run(setting, select(["quick"]), lambda case: begun.append(case.title)))
        made = Report(machine_facts(setting), version_facts(), setting_facts(setting), rows)
        setting.engine.check()
        readings = setting.engine.readings()
        assert readings.contexts == (), "a case left contexts open"
        assert readings.pages.free == readings.pages.total, "a case left pages held"
    assert begun == [case.title for case in select(["quick"])]
    return made.to_json()


def rows_of(report: dict[str, Any], suite: str) -> list[dict[str, Any]]:
    """Return the rows of a suite."""
    return [row for row in report["rows"] if row["suite"] == suite]


def test_every_suite_gives_rows_with_all_their_trials(report: dict[str, Any]) -> None:
    """Two values a side and row, all of them above 0; a search of prompts takes minutes on a CPU and runs once."""
    assert {row["suite"] for row in report["rows"]} == set(SUITES)
    for row in report["rows"]:
        assert len(row["trials"]) == row["n"] == (1 if row["case"].startswith("prompts: ") else 2)
        assert min(row["trials"]) > 0
        assert (row["ratio"] is None) == (row["baseline_trials"] is None)


def test_both_sides_decode_the_same_tokens_to_the_full_length(report: dict[str, Any]) -> None:
    """Otherwise two different texts would be compared; an end of sequence would cut one short."""
    for row in rows_of(report, "decode"):
        assert row["facts"]["equal_tokens"] == 1.0
        assert row["facts"]["decoded_tokens"] == 4


def test_branches_share_pages_and_unrelated_prompts_cost_their_own(report: dict[str, Any]) -> None:
    """The report shows that forks really shared, and which way attention went."""
    one, branches, unrelated = rows_of(report, "decode")
    assert branches["facts"]["shared_pages"] > 0
    assert branches["facts"]["kv_bytes"] < branches["facts"]["baseline_kv_bytes"]
    assert branches["facts"]["kv_bytes"] < 3 * one["facts"]["kv_bytes"]
    assert unrelated["facts"]["kv_bytes"] > one["facts"]["kv_bytes"]
    assert "3 rows" in branches["facts"]["attention"]
    assert branches["facts"]["choice"]["chosen"] in branches["facts"]["choice"]["us_per_layer"]


def test_the_search_is_the_same_work_on_all_sides(report: dict[str, Any]) -> None:
    """The same nodes, fewer prompt tokens than one prompt a node, and a score that mlx-lm gives too."""
    prompts, copies = rows_of(report, "tot")
    for row in (prompts, copies):
        assert row["facts"]["nodes"] == row["facts"]["baseline_nodes"] == 4
        assert row["facts"]["label_error"] < 1e-3
    assert prompts["facts"]["prefill_ratio"] < 0.5
    assert copies["facts"]["kv_ratio"] < 1


def test_pressure_changes_the_time_and_not_the_tree(report: dict[str, Any]) -> None:
    """A smaller pool really was under pressure, and every node is the same."""
    for row in rows_of(report, "pressure"):
        assert row["facts"]["pool_pages"] < row["facts"]["need_pages"]
        assert row["facts"]["evictions"] + row["facts"]["preemptions"] > 0
        assert row["facts"]["same_nodes"] == 1.0


def test_the_report_says_how_it_was_measured(report: dict[str, Any]) -> None:
    """Cache off, greedy, warm-up dropped, versions and machine: what a comparison needs."""
    settings = report["settings"]
    assert settings["prefix_cache"] is False
    assert (settings["sampling"], settings["end_of_sequence"], settings["interleaved"]) == ("greedy", "ignored", True)
    assert settings["warm_ups_dropped"] == 1
    assert all(report["versions"][name] for name in ("pie-mlx", "mlx", "mlx-lm", "python"))
    assert report["machine"]["read_bytes_per_s"] > 0
    assert "smollm2" in to_html(report)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_gives_the_figures_that_it_has(starter: Path, sent: signal.Signals, code: int) -> None:
    """Stopped within a case: one object with the rows before it, what is missing, and the exit code of a stop."""
    command = (sys.executable, "-m", "pie_mlx", "bench", "quick", "--trials", "1", "--json", "--model", str(starter))
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert child.stderr is not None
    told = [line for line, _ in zip(iter(child.stderr.readline, ""), range(3), strict=False)]
    assert told[0].startswith("1/"), told
    assert told[2].startswith("2/"), told
    child.send_signal(sent)
    out, err = child.communicate(timeout=120)
    assert child.returncode == code, err
    report = json.loads(out)
    assert report["rows"]
    missing, titles = report["unmeasured"], [case.title for case in select(["quick"])]
    assert 0 < len(missing) < len(titles)
    assert missing == titles[-len(missing) :]
    assert "not measured" in err
