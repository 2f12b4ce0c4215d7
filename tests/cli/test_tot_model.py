"""``tot`` with the starter model: a run in a pipe and on a terminal, and what follows from its trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("starter")]
RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

FIELDS = {
    "schema",
    "answer",
    "solved",
    "finish_reason",
    "nodes",
    "tokens",
    "wall_s",
    "pages",
    "alarms",
    "duplicate_share",
}
PAGES = {"total", "peak", "free_before", "free_after", "sharing_ratio"}
RUN = ("tot", "run", "4 9 10 13", "--task", "game24", "--pool-pages", "256", "--max-tokens", "16")


def test_json_has_exactly_its_fields_and_check_is_exit_5(cli: RunCli, tmp_path: Path) -> None:
    """One object; every page comes back; unsolved is 5 with --check; each event is a plain line on stderr."""
    trace = tmp_path / "t.jsonl"
    done = cli(*RUN, "--breadth", "2", "--beam", "1", "--depth", "1", "--check", "--trace", str(trace), "--json")
    facts = json.loads(done.stdout)
    assert (set(facts), facts["schema"]) == (FIELDS, "pie-mlx.tot-result/1")
    assert set(facts["pages"]) == PAGES
    assert facts["pages"]["free_before"] == facts["pages"]["free_after"]
    assert (done.returncode, facts["solved"]) == (5, False)
    assert "start   beam" in done.stderr
    assert "finish  unsolved" in done.stderr
    assert "\x1b" not in done.stderr
    assert str(trace) in done.stderr
    again = cli(*RUN, "--trace", str(trace))
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_solved_moves_give_the_answer_and_every_view_of_it(cli: RunCli, tmp_path: Path) -> None:
    """Legal moves and the oracle solve it; the answer alone is on stdout; show, replay and export are plain text."""
    done = cli(*RUN, "--propose", "legal", "--scorer", "oracle", "--oracle", "--check")
    assert done.returncode == 0, done.stderr
    assert "24" in done.stdout
    assert done.stdout.count("\n") == 1
    assert "steered by the oracle" in done.stderr
    shown = cli("tot", "show")
    nodes = json.loads(cli("tot", "show", "--json").stdout)["nodes"]
    tree = shown.stdout.split("\n\n")[1]
    assert len(tree.splitlines()) == len(nodes)
    assert "★" in tree
    accepted = next(node["id"] for node in nodes if node["status"] == "accepted")
    assert f"[{accepted}] accepted" in cli("tot", "show", "--node", accepted).stdout
    assert "finish  answer" in cli("tot", "replay").stdout
    for name, start in (("html", "<!"), ("svg", "<"), ("mermaid", ""), ("dot", ""), ("json", "{"), ("speedscope", "{")):
        made = cli("tot", "export", "--format", name)
        assert made.returncode == 0, made.stderr
        assert made.stdout.lstrip().startswith(start)
        assert "\x1b" not in made.stdout
    page = tmp_path / "tree.html"
    assert cli("tot", "export", "-o", str(page)).stdout == ""
    assert page.read_text(encoding="utf-8").lstrip().startswith("<!")


class Terminal:
    """The program on a terminal of 80 by 24, and what it wrote there."""

    def __init__(self, *args: str) -> None:
        """Start the program."""
        env = {**os.environ, "TERM": "xterm-256color"}
        self.program = pexpect.spawn(sys.executable, ["-m", "pie_mlx", *args], env=env, dimensions=(24, 80))
        self.raw = b""

    def until(self, wanted: str, *, limit_s: float = 200) -> None:
        """Read until the output holds ``wanted``, or the program has ended."""
        end = time.monotonic() + limit_s
        while wanted.encode() not in self.raw and time.monotonic() < end:
            try:
                chunk = self.program.read_nonblocking(65536, timeout=1)
                self.raw += chunk if isinstance(chunk, bytes) else chunk.encode()
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                return

    def to_the_end(self) -> str:
        """Read until the program has ended; return what stands on the ordinary screen, without styles."""
        self.until("\0never\0")
        self.program.wait()
        last = self.raw.rpartition(b"\x1b[?1049l")[2].decode()
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)

    @property
    def is_restored(self) -> bool:
        """Whether the ordinary screen and the cursor are back."""
        screen = self.raw.count(b"\x1b[?1049h") == self.raw.count(b"\x1b[?1049l") == 1
        return screen and self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts the program on a terminal."""
    started: list[Terminal] = []

    def start(*args: str) -> Terminal:
        started.append(Terminal(*args))
        return started[-1]

    yield start
    for one in started:
        one.program.close(force=True)


def test_the_live_tree_leaves_one_frame_behind(terminal: Callable[..., Terminal]) -> None:
    """It is drawn on the other screen, resized on the way, and its last frame stays once, with the summary."""
    live = terminal(*RUN, "--breadth", "2", "--beam", "1", "--depth", "2")
    live.until("0.0")
    live.program.setwinsize(20, 60)
    last = live.to_the_end()
    assert live.program.exitstatus == 0
    assert live.is_restored
    assert last.count("game24 · beam") == 1
    rows = [line for line in last.splitlines() if re.match(r"[├└]─ \S.0\.0 ", line)]
    assert len(rows) == 1
    assert "pool" in last
    assert "result" in last


def test_an_interrupted_run_restores_the_terminal(terminal: Callable[..., Terminal]) -> None:
    """Ctrl-C in the live tree: 130, the ordinary screen and cursor are back, the trace is complete."""
    live = terminal(*RUN, "--breadth", "4", "--depth", "3", "--temp", "1")
    live.until("0.0")
    live.program.sendintr()
    live.to_the_end()
    assert live.program.exitstatus == 130
    assert live.is_restored
    traces = list((Path(os.environ["PIE_MLX_STATE_DIR"]) / "traces").iterdir())
    assert json.loads(traces[0].read_text().splitlines()[-1])["reason"] == "cancelled"


def test_a_terminated_run_restores_the_terminal(terminal: Callable[..., Terminal]) -> None:
    """SIGTERM leaves through the same door."""
    live = terminal(*RUN, "--breadth", "4", "--depth", "3", "--temp", "1")
    live.until("0.0")
    live.program.kill(signal.SIGTERM)
    live.to_the_end()
    assert live.program.exitstatus == 143
    assert live.is_restored


def test_a_killed_run_can_be_finished(cli: RunCli, tmp_path: Path) -> None:
    """A kill -9 leaves a readable trace; resume finishes it, and show tells both."""
    trace = tmp_path / "t.jsonl"
    command = [sys.executable, "-m", "pie_mlx", *RUN, "--breadth", "3", "--depth", "2", "--trace", str(trace)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    ) as program:
        assert program.stderr is not None
        while "  0.0  " not in program.stderr.readline():
            pass
        program.send_signal(signal.SIGKILL)
    assert "tot resume" in cli("tot", "show", str(trace)).stdout
    done = cli("tot", "resume", str(trace), "--pool-pages", "256")
    assert done.returncode == 0, done.stderr
    assert json.loads(cli("tot", "show", str(trace), "--json").stdout)["finish_reason"] is not None


SET = ["tot", "run", "--task", "game24", "--split", "easy", "--strategy", "greedy", "--breadth", "1"]
SET += ["--max-tokens", "8", "--pool-pages", "256"]


def test_a_set_tells_first_any_and_chance(cli: RunCli, tmp_path: Path) -> None:
    """One object with its schema, a row and a trace a puzzle, rivals and baselines; unsolved is 5 with --check."""
    folder = tmp_path / "set"
    done = cli(*SET, "--n", "2", "--json", "--check", "--trace", str(folder))
    facts = json.loads(done.stdout)
    assert (facts["schema"], facts["n"], facts["complete"]) == ("pie-mlx.tot-set/1", 2, True)
    assert done.returncode == (0 if facts["first"] == 1.0 else 5), done.stderr
    assert facts["first"] <= facts["any"]
    assert facts["baselines"]["random_pass"]["100"] > facts["baselines"]["random_pass"]["1"]
    assert [rival["strategy"] for rival in facts["rivals"]] == ["best_of_n"]
    assert [Path(row["trace"]) for row in facts["rows"]] == [folder / "001.jsonl", folder / "002.jsonl"]
    assert cli("tot", "show", str(folder / "002.jsonl")).returncode == 0
    again = cli(*SET, "--n", "2", "--trace", str(folder))
    assert again.returncode == 2
    assert "is not empty" in again.stderr


def test_an_interrupted_set_keeps_what_is_done(tmp_path: Path) -> None:
    """Ctrl-C after the first of many puzzles: a table of what is done, marked, and 130."""
    command = [sys.executable, "-m", "pie_mlx", *SET, "--n", "40", "--no-compare", "--trace", str(tmp_path / "set")]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as program:
        assert program.stderr is not None
        assert program.stdout is not None
        while not (line := program.stderr.readline()).startswith("1/40"):
            assert line, "the program ended before its first puzzle"
        program.send_signal(signal.SIGINT)
        table = program.stdout.read()
        assert program.wait() == 130
    assert "not complete" in table
    assert "random play, best of 100" in table


@pytest.mark.parametrize("extra", [("4 4 6 8",), ("--tui",), ("--n", "0")])
def test_a_set_has_no_question_and_no_workbench(cli: RunCli, extra: tuple[str, ...]) -> None:
    """What contradicts itself is refused before the model is loaded."""
    assert cli(*SET, "--n", "2", *extra).returncode == 2
