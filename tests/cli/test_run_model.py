"""``run`` with the starter model, as a person at a terminal and as a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("starter")]
RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

FIELDS = {
    "schema",
    "text",
    "reasoning",
    "finish_reason",
    "model",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "ttft_s",
    "decode_tps",
    "seed",
    "pages",
}
SMALL = ("--pool-pages", "128")


def test_json_has_exactly_its_fields(cli: RunCli) -> None:
    """The object that scripts rely on; greedy, so the answer is known."""
    done = cli("run", "What is the capital of France?", "--max-tokens", "20", "--json", *SMALL)
    facts = json.loads(done.stdout)
    assert (set(facts), done.returncode, done.stderr) == (FIELDS, 0, "")
    assert facts["schema"] == "pie-mlx.run/1"
    assert "Paris" in facts["text"]
    assert facts["finish_reason"] == "stop"
    assert set(facts["pages"]) == {"total", "free", "held", "shared"}
    assert facts["pages"]["total"] == 128
    assert facts["pages"]["free"] + facts["pages"]["held"] == 128


def test_text_and_pipe_are_one_prompt(cli: RunCli) -> None:
    """What a pipe brings is joined to the argument: more prompt tokens than the argument alone has."""
    short = json.loads(cli("run", "Say it:", "--max-tokens", "1", "--json", *SMALL).stdout)
    both = json.loads(cli("run", "Say it:", "--max-tokens", "1", "--json", *SMALL, stdin="one two three").stdout)
    assert both["prompt_tokens"] > short["prompt_tokens"]
    assert short["completion_tokens"] == 1


def test_an_answer_of_no_token_is_refused(cli: RunCli) -> None:
    """It would be an empty success."""
    done = cli("run", "Say it:", "--max-tokens", "0", *SMALL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "at least 1" in done.stderr


def test_pieces_join_to_the_text(cli: RunCli) -> None:
    """JSON lines: a piece a line, the final object last, with log-probabilities where asked."""
    done = cli("run", "Count to five.", "--max-tokens", "12", "--jsonl", "--logprobs", "2", *SMALL)
    *pieces, final = [json.loads(line) for line in done.stdout.splitlines()]
    assert {piece["schema"] for piece in pieces} == {"pie-mlx.run-piece/1"}
    assert "".join(piece["text"] for piece in pieces) == final["text"] != ""
    assert len(pieces) > 1
    assert set(final) == FIELDS | {"logprobs"}
    assert [len(entry["top"]) for entry in final["logprobs"]] == [2] * final["completion_tokens"]


def test_n_answers_fork_one_prompt(cli: RunCli) -> None:
    """The first answer of three equals the answer of one with the same seed; the prompt's pages are shared."""
    args = ("run", "Tell me about the sea.", "--max-tokens", "8", "--temp", "0.9", "--seed", "7", "--json", *SMALL)
    one, three = json.loads(cli(*args).stdout), json.loads(cli(*args, "--n", "3").stdout)
    assert len(three["choices"]) == 3
    assert three["choices"][0]["text"] == three["text"] == one["text"]
    assert len({choice["text"] for choice in three["choices"]}) > 1
    assert three["pages"]["shared"] > 0
    assert three["completion_tokens"] == sum(choice["completion_tokens"] for choice in three["choices"])


def test_the_first_byte_comes_before_the_last_token() -> None:
    """A pipe is written piece by piece: text is there while the program still works."""
    command = [sys.executable, "-m", "pie_mlx", "run", "Count to one hundred.", "--max-tokens", "200", *SMALL]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing) as program:
        assert program.stdout is not None
        assert program.stdout.read(1)
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        program.stdout.read()
    assert program.returncode == 130


def test_head_ends_quietly(cli: RunCli) -> None:
    """``| head -c 10`` is no failure, and nothing is said about it."""
    command = f"'{sys.executable}' -m pie_mlx run 'Count to fifty.' --max-tokens 60 --pool-pages 128 </dev/null"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -c 10; echo; echo ${{PIPESTATUS[0]}}"],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"
    assert len(done.stdout.splitlines()[0].encode()) == 10


def test_an_interrupted_answer_is_kept() -> None:
    """Ctrl-C with --json: the text so far, said to be cancelled, exit 130."""
    ask = ("run", "Count to one hundred.", "--max-tokens", "400", "--jsonl")
    command = [sys.executable, "-m", "pie_mlx", *ask, *SMALL]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        first = json.loads(program.stdout.readline())
        program.send_signal(signal.SIGINT)
        final = json.loads(program.stdout.read().splitlines()[-1])
        said = program.stderr.read()
    assert (program.returncode, said) == (130, "")
    assert (final["schema"], final["finish_reason"]) == ("pie-mlx.run/1", "cancelled")
    assert final["text"].startswith(first["text"])
    assert 0 < final["completion_tokens"] < 400


def test_a_terminal_gets_text_and_figures() -> None:
    """On a terminal the answer streams, and a line of figures follows; NO_COLOR takes every escape away."""
    command = f"{sys.executable} -m pie_mlx run 'What is the capital of France?' --max-tokens 20 --pool-pages 128"
    told = pexpect.run(command, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"}, timeout=240)
    assert isinstance(told, bytes)
    plain = told.decode()
    assert "Paris" in plain
    assert "TTFT" in plain
    assert "\x1b" not in plain
    coloured = pexpect.run(command, env={**os.environ, "TERM": "xterm-256color"}, timeout=240)
    assert isinstance(coloured, bytes)
    assert b"\x1b" in coloured


def test_a_pool_too_small_is_exit_4(cli: RunCli) -> None:
    """An ask that can never fit is refused at once, with the numbers and what to do."""
    done = cli("run", "word " * 300, "--max-tokens", "8", "--pool-pages", "4")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "--pool-pages" in done.stderr
    assert "4" in done.stderr.splitlines()[1]


def test_files_are_read_under_any_locale(cli: RunCli, tmp_path: Path) -> None:
    """LANG=C changes nothing: the file is UTF-8, and so is the answer's JSON."""
    path = tmp_path / "grüße.txt"
    path.write_text("Grüße, 你好 😀", encoding="utf-8")
    args = ("run", "Repeat it.", "--file", str(path), "--max-tokens", "4", "--json", *SMALL)
    done = cli(*args, env={"LANG": "C", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["prompt_tokens"] == json.loads(cli(*args).stdout)["prompt_tokens"]


def test_doctor_finds_a_working_machine(cli: RunCli) -> None:
    """Every check runs; nothing fails where the starter model runs."""
    done = cli("doctor", "--json", *SMALL)
    facts = json.loads(done.stdout)
    names = {check["name"] for check in facts["checks"]}
    assert {"machine", "device", "memory", "versions", "arena", "model", "pool", "labels", "fork", "decode"} <= names
    assert (facts["ok"], done.returncode) == (True, 0)
    broken = cli("doctor", "-m", "no-such-model")
    assert broken.returncode == 1
    assert "✗ model" in broken.stdout
    assert "try: " in broken.stdout


def test_info_adds_up(cli: RunCli) -> None:
    """Weights, pages and working space are the total; pages cover the context asked for."""
    facts = json.loads(cli("info", "--context", "100", "--page-size", "32", "--json").stdout)
    need = facts["estimate"]
    assert need["weight_bytes"] + need["kv_bytes"] + need["working_bytes"] == need["total_bytes"]
    assert (need["pages"], need["tokens"]) == (4, 100)
