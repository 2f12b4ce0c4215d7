"""The outer edge: help, typos, errors, exit codes, pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.cli.main import EdgeFlags

HEAVY = ("mlx", "mlx_lm", "transformers", "textual", "numpy", "tokenizers", "jinja2")
COMMANDS = (
    (),
    ("run",),
    ("tot",),
    ("tot", "run"),
    ("tot", "resume"),
    ("tot", "show"),
    ("tot", "replay"),
    ("tot", "export"),
    ("tot", "tasks"),
    ("models",),
    ("pull",),
    ("rm",),
    ("info",),
    ("doctor",),
    ("config",),
    ("config", "show"),
    ("config", "path"),
    ("config", "set"),
    ("completion",),
    ("chat",),
    ("sessions", "ls"),
    ("snapshots", "ls"),
    ("tui",),
    ("tot", "view"),
    ("bench",),
    ("serve",),
    ("top",),
)
RunCli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_no_help_imports_what_is_heavy() -> None:
    """Help is quick: no model library, no TUI, nor a tokenizer is imported by any command's."""
    script = (
        "import sys\nfrom pie_mlx.cli.main import invoke\n"
        f"for command in {COMMANDS!r}:\n    assert invoke([*command, '--help']) == 0, command\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, encoding="utf-8")
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("command", [(), ("run",), ("tot",)], ids=" ".join)
def test_help_in_a_pipe_is_plain(cli: RunCli, command: tuple[str, ...]) -> None:
    """No ANSI in a pipe, not on a build server either, and not at twenty columns."""
    for env in ({"GITHUB_ACTIONS": "1", "FORCE_COLOR": "1"}, {"COLUMNS": "20", "TERMINAL_WIDTH": "20"}):
        done = cli(*command, "--help", env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        assert "Usage" in done.stdout


def test_help_groups_the_commands(cli: RunCli) -> None:
    """A newcomer finds a command by what it is for."""
    text = cli("--help").stdout
    assert re.findall(r"─ (\w+) ─", text)[1:] == ["Talk", "Think", "Models", "Measure", "Serve", "Config"]


def test_help_says_what_an_option_takes(cli: RunCli) -> None:
    """A number, a text or a file by its usual letter; nothing for a switch, ``--help`` among them."""
    rows = {line.split()[1]: line for line in cli("run", "--help").stdout.splitlines() if line.startswith("│ --")}
    assert all("<bool>" not in row for row in rows.values())
    taken = {"--max-tokens": " N ", "--temp": " X ", "--file": " FILE ", "--stop": " TEXT ", "--color": "<auto|"}
    assert [name for name, word in taken.items() if word not in rows[name]] == []


@pytest.mark.parametrize("group", [(), ("tot",), ("config",)], ids=" ".join)
def test_a_group_alone_shows_its_commands_and_says_what_is_missing(here: RunCli, group: tuple[str, ...]) -> None:
    """Help, and one sentence: it is no error without words."""
    done = here(*group)
    assert done.returncode == 2
    assert "Usage" in done.stdout
    assert done.stderr.startswith(f"error: {' '.join(('pie-mlx', *group))} needs a command\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
@pytest.mark.parametrize("args", [("models",), ("models", "--json"), ("--help",)], ids=" ".join)
def test_a_full_disk_is_a_sentence(args: tuple[str, ...]) -> None:
    """Exit 1 and what to do, on stderr; no traceback, and no JSON where none can be written."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pie_mlx", *args], check=False, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: the disk is full\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_stream_that_the_caller_closed_is_no_failure(closed: str) -> None:
    """What would go there goes nowhere; the rest is as ever."""
    shell = f'"$0" -m pie_mlx models {closed}'
    done = subprocess.run(["sh", "-c", shell, sys.executable], check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&- " not in f"{closed} ".replace("2>&-", ""))


def test_version_is_data(cli: RunCli) -> None:
    """One line on stdout."""
    done = cli("--version")
    assert done.stdout.startswith("pie-mlx ")
    assert (done.stdout.count("\n"), done.stderr, done.returncode) == (1, "", 0)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("rnu",), "run"), (("tot", "replya"), "replay"), (("run", "--max-tokns", "3", "x"), "--max-tokens")],
)
def test_a_typo_gets_a_suggestion(here: RunCli, typed: tuple[str, ...], meant: str) -> None:
    """The error names what was probably meant, and the help to read; stdout stays empty."""
    done = here(*typed)
    assert (done.returncode, done.stdout) == (2, "")
    assert meant in done.stderr.splitlines()[0]
    assert done.stderr.startswith("error: ")
    assert "  try: pie-mlx" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "exit_code"),
    [
        (("run", "x", "--n", "0"), "invalid_parameter", 2),
        (("run", "x", "--n", "-1"), "invalid_parameter", 2),
        (("run", "x", "--temp", "nan"), "invalid_parameter", 2),
        (("run", "x", "--top-p", "0"), "invalid_parameter", 2),
        (("run", "x", "--seed", "-1"), "invalid_parameter", 2),
        (("run", "x", "--pool-memory", "much"), "invalid_parameter", 2),
        (("run", "x", "--pool-memory", "1GB", "--pool-pages", "3"), "usage", 2),
        (("run", "x", "--logprobs", "21"), "invalid_parameter", 2),
        (("run", "x", "--stop", ""), "invalid_parameter", 2),
        (("run", "x", "--raw", "--system", "s"), "usage", 2),
        (("run", "x", "--max-tokens", "many"), "usage", 2),
        (("run",), "usage", 2),
        (("run", "  "), "usage", 2),
        (("run", "x", "--file", "/nowhere/at/all"), "usage", 2),
        (("run", "x", "-m", "no-such-model"), "model_not_found", 3),
        (("info", "no-such-model"), "model_not_found", 3),
        (("info", "--context", "0"), "invalid_parameter", 2),
        (("rm", "no-such-model"), "model_not_found", 3),
        (("pull", "no-such-model"), "model_not_found", 3),
        (("tot", "run", "x", "--task", "game42"), "task", 2),
        (("tot", "run", "x", "--check"), "usage", 2),
        (("tot", "run", "x", "--breadth", "0"), "invalid_parameter", 2),
        (("tot", "run", "x", "--scorer", "oracle"), "invalid_parameter", 2),
        (("tot", "run", "x", "--strategy", "astar"), "invalid_parameter", 2),
        (("tot", "show"), "usage", 2),
        (("tot", "show", "/nowhere/at/all"), "usage", 2),
        (("tot", "replay", "x", "--speed", "0"), "invalid_parameter", 2),
        (("no-such-command",), "usage", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_error_is_one_object_with_json(here: RunCli, args: tuple[str, ...], code: str, exit_code: int) -> None:
    """Found before any model is loaded; typed, with the exit code of its kind, and nothing on stderr."""
    done = here(*args, "--json")
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"code", "message", "hint", "detail"}
    assert (error["code"], done.returncode, done.stderr) == (code, exit_code, "")
    assert error["message"]


def test_an_error_says_what_why_and_try(here: RunCli) -> None:
    """Three lines for a person, no traceback; --debug adds it."""
    lines = here("run", "x", "-m", "smollm2-135").stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "  why", "  try"]
    assert "smollm2-135m" in lines[2]
    assert "Traceback" in here("run", "x", "-m", "smollm2-135", "--debug").stderr


def test_a_wrong_configuration_names_file_line_and_key(here: RunCli, tmp_path: Path) -> None:
    """Exit 2, for any command that reads settings."""
    folder = Path(os.environ["PIE_MLX_CONFIG_DIR"])
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("temp = 0.5\npool_pagse = 3\n")
    for command in (("run", "x"), ("config", "show"), ("models",), ("doctor",)):
        done = here(*command)
        assert done.returncode == 2
        assert f"{folder / 'config.toml'}:2: pool_pagse" in done.stderr
        assert "pool_pages" in done.stderr


@pytest.mark.parametrize("args", [("models",), ("--help",), ("config", "show", "--json"), ("completion", "bash")])
def test_a_closed_pipe_is_no_failure(args: tuple[str, ...]) -> None:
    """The reader may go at any time: exit 0, not a word on stderr."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "pie_mlx", *args], check=False, stdout=write_end, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("args", [("models",), ("tot", "tasks"), ("config", "show", "--origin"), ("config", "path")])
def test_data_in_a_pipe_is_plain_and_whole(cli: RunCli, args: tuple[str, ...]) -> None:
    """A table in a pipe has no ANSI and no cut line, however narrow COLUMNS says that the terminal is."""
    narrow, wide = cli(*args, env={"COLUMNS": "20"}), cli(*args, env={"COLUMNS": "200"})
    assert narrow.stdout == wide.stdout != ""
    assert "\x1b" not in narrow.stdout
    assert "…" not in narrow.stdout


@pytest.mark.parametrize("args", [("models",), ("config", "show"), ("config", "path"), ("tot", "tasks")])
def test_json_has_a_schema(here: RunCli, args: tuple[str, ...]) -> None:
    """One object on one line in a pipe."""
    done = here(*args, "--json")
    assert json.loads(done.stdout)["schema"].startswith("pie-mlx.")
    assert done.stdout.count("\n") == 1


def test_config_set_is_what_config_show_shows(cli: RunCli) -> None:
    """Set, show with origin, and a flag on top."""
    assert cli("config", "set", "max_batch", "4").returncode == 0
    shown: dict[str, Any] = json.loads(cli("config", "show", "--json").stdout)
    assert shown["settings"]["max_batch"] == 4
    assert shown["origins"]["max_batch"].startswith("user (")
    assert "environment (PIE_MLX_MAX_BATCH)" in cli("config", "show", "--origin", env={"PIE_MLX_MAX_BATCH": "5"}).stdout
    assert cli("config", "set", "max_batch", "none").returncode == 2


def test_completion_completes(cli: RunCli) -> None:
    """The script is for the shell asked for, and what it calls answers."""
    assert "_pie_mlx_completion" in cli("completion", "bash").stdout
    assert "#compdef pie-mlx" in cli("completion", "zsh").stdout
    env = {"_PIE_MLX_COMPLETE": "complete_bash", "COMP_WORDS": "pie-mlx mo", "COMP_CWORD": "1"}
    done = cli(env=env)
    assert done.stdout.split() == ["models"]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        (["run", "x"], EdgeFlags(json=False, debug=False, color="auto")),
        (["run", "--jsonl", "--debug", "--color", "never"], EdgeFlags(json=True, debug=True, color="never")),
        (["--color=always"], EdgeFlags(json=False, debug=False, color="always")),
        (["run", "--", "--json", "--color=always"], EdgeFlags(json=False, debug=False, color="auto")),
        (["--color", "blue"], EdgeFlags(json=False, debug=False, color="auto")),
    ],
)
def test_the_edge_reads_its_flags_by_hand(args: list[str], flags: EdgeFlags) -> None:
    """So that an error of parsing is shown in the form that was asked for."""
    assert EdgeFlags.read(args) == flags
