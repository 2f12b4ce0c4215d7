"""``chat`` with the starter model: as a program in a pipe, and in a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("starter")]
RunCli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ("--pool-pages", "128", "--max-tokens", "12", "--temp", "0", "--offline")


def test_lines_of_a_pipe_are_answered_and_can_be_resumed(cli: RunCli) -> None:
    """Turns and commands from stdin; no escape and no mark on stdout; the session goes on in another process."""
    turns = "What is the capital of France?\n/fork idea\n//hello\n/tree\n"
    done = cli("chat", "--session", "geo", *SMALL, stdin=turns)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert ">" not in done.stdout
    assert "[idea]" in done.stderr
    # What is configured by now does not matter: the session goes on with its own model.
    again = cli("chat", "--resume", "--once", "And of Italy?", *SMALL, env={"PIE_MLX_MODEL": "another-model"})
    assert again.returncode == 0, again.stderr
    assert "session geo goes on with smollm2-135m (--model another-model changes that)" in again.stderr
    document = json.loads(cli("sessions", "show", "geo", "--json").stdout)
    assert [turn["text"] for turn in document["turns"] if turn["role"] == "user"] == [
        "What is the capital of France?",
        "/hello",
        "And of Italy?",
    ]
    assert document["current_branch"] == "idea"


def test_a_failing_line_ends_a_piped_chat(cli: RunCli) -> None:
    """A wrong command is a usage error of the whole, with the nearest name; nothing after it is said."""
    done = cli("chat", "--no-save", *SMALL, stdin="/tre\nhello\n")
    assert done.returncode == 2
    assert "/tree" in done.stderr
    assert done.stdout == ""


def test_control_c_in_a_pipe_ends_with_130_and_keeps_the_reply(tmp_path: Path) -> None:
    """The partial reply is saved, and there is no traceback."""
    command = [sys.executable, "-m", "pie_mlx", "chat", "--session", "cut", "--once", "Tell me a long story."]
    options = ["--pool-pages", "128", "--max-tokens", "1500", "--offline"]
    child = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.read(20)
    os.kill(child.pid, signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in told
    shown = subprocess.run(
        [sys.executable, "-m", "pie_mlx", "sessions", "show", "cut", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    reply = json.loads(shown.stdout)["turns"][-1]
    assert reply["state"] == "partial"
    assert len(reply["text"]) >= 20


def test_a_conversation_in_a_terminal(open_terminal: Callable[..., Any]) -> None:
    """A turn, one that is stopped, a retry, the tree and the figures, in a locale that says ASCII and means nothing."""
    options = ("--pool-pages", "256", "--max-tokens", "200", "--temp", "0", "--offline", "--session", "talk")
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    terminal = open_terminal((sys.executable, "-m", "pie_mlx", "chat", *options), **ascii_locale)
    terminal.prompt()
    terminal.say("/fork ěšč")
    terminal.expect("branch ěšč begins here")
    terminal.say("/switch main")
    terminal.say("What is the capital of France?")
    assert "Paris" in terminal.text()
    terminal.send("Write a long story about a dragon.\r")
    terminal.expect("Once upon a")
    terminal.send("\x03")
    terminal.expect("stopped")
    terminal.prompt()
    terminal.say("/set max_tokens 5")
    terminal.say("/retry")
    terminal.say("/tree")
    assert "├─ ○ Write a long" in terminal.text()
    terminal.say("/stats")
    assert "1 computed" in terminal.text()
    terminal.expect("prefix hit 9")
    assert terminal.leave() == 0
