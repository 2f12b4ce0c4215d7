"""The chat without a terminal, and the commands for saved sessions."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx.chat.store import NEW, SessionStore, default_path
from pie_mlx.chat.turns import Turn
from pie_mlx.cli.chat.piped import read_lines
from pie_mlx.errors import UsageError

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def saved() -> None:
    """Save one session of two branches, with text that a terminal would obey."""
    with SessionStore(default_path()) as store:
        facts = store.create(model="m", name="trip", system="be brief")
        tip = None
        for number, (text, reply) in enumerate((("where?", "Rome \x1b[2J[red]"), ("when?", "in May"))):
            message, answer = store.add_exchange(facts.id, Turn(NEW, tip, "user", text), "m")
            store.update_turn(Turn(answer.id, message.id, "assistant", reply, finish_reason="stop", model="m"))
            if number == 0:
                store.add_branch(facts.id, "idea", answer.id)
            assert store.move_branch(facts.id, "main", seen=tip, tip=answer.id)
            tip = answer.id


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (b"", []),
        (b"\n \r\n\n", []),
        (b"a\r\nb\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"one\\\ntwo\\\\\nthree", ["one\ntwo\\\\", "three"]),
        (b"last\\\n", ["last"]),
        ("ěščř 你\n".encode(), ["ěščř 你"]),
    ],
)
def test_lines_of_a_pipe_are_turns(given: bytes, lines: list[str]) -> None:
    """Each line that says something is one; a backslash at its end joins the next."""
    assert list(read_lines(io.BytesIO(given))) == lines


def test_a_line_that_is_no_text_is_named() -> None:
    """The refusal says which line and where."""
    with pytest.raises(UsageError, match=r"line 2 .*byte 1"):
        list(read_lines(io.BytesIO(b"ok\na\xff\n")))


def test_nothing_on_stdin_ends_at_once_and_loads_nothing(here: RunCli) -> None:
    """``chat </dev/null`` exits with 0; a model that is not there is not even looked for."""
    done = here("chat", "--model", "no-such-model")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not default_path().exists()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--json",), "no JSON form"),
        (("--resume", "--session", "x"), "one of the two"),
        (("--theme", "pink"), "dark or light"),
        (("--resume", "--once", "hi"), "no session to resume"),
        (("--temp", "-1", "--once", "hi"), "0 or more"),
    ],
)
def test_flags_without_meaning_are_refused_before_anything_is_loaded(
    here: RunCli, args: tuple[str, ...], why: str
) -> None:
    """Exit code 2, one error with its reason."""
    done = here("chat", "--model", "no-such-model", *args)
    assert done.returncode == 2
    assert why in done.stdout + done.stderr


def test_a_missing_model_leaves_no_session(here: RunCli) -> None:
    """Exit code 3, and nothing is saved."""
    done = here("chat", "--model", "no-such-model", "--offline", "--once", "hi")
    assert done.returncode == 3
    with SessionStore(default_path()) as store:
        assert store.sessions() == []


@pytest.mark.usefixtures("saved")
def test_sessions_are_listed_shown_and_found(here: RunCli) -> None:
    """The list, the tree with the current branch, and a search; no control character and no markup."""
    assert "trip" in here("sessions", "ls").stdout
    shown = here("sessions", "show", "trip").stdout
    assert "● when? → in May  [main]" in shown
    assert "Rome ␛[2J[red]" in shown
    assert "\x1b" not in shown
    assert "in May" in here("sessions", "search", "may").stdout
    document = json.loads(here("sessions", "show", "trip", "--json").stdout)
    assert document["branches"].keys() == {"main", "idea"}
    listed = json.loads(here("sessions", "ls", "--json").stdout)
    assert [(item["name"], item["turns"]) for item in listed["sessions"]] == [("trip", 4)]
    matches = json.loads(here("sessions", "search", "rome", "--json").stdout)["matches"]
    assert [match["role"] for match in matches] == ["assistant"]


@pytest.mark.usefixtures("saved")
def test_a_session_is_renamed_exported_and_removed(here: RunCli, tmp_path: Path) -> None:
    """Each names what it acts on; a wrong name meets the nearest, with exit code 2."""
    assert here("sessions", "rename", "trip", "journey").returncode == 0
    wrong = here("sessions", "export", "journy")
    assert wrong.returncode == 2
    assert "did you mean 'journey'?" in wrong.stderr
    assert "## User [3]" in here("sessions", "export", "journey").stdout
    path = tmp_path / "out.json"
    assert here("sessions", "export", "journey", "--form", "json", "--to", str(path)).returncode == 0
    assert json.loads(path.read_text())["system"] == "be brief"
    assert here("sessions", "export", "journey", "--to", str(path)).returncode == 2
    assert here("sessions", "rm", "journey").returncode == 0
    assert here("sessions", "rm", "journey").returncode == 2


def test_no_session_is_an_empty_list(here: RunCli) -> None:
    """Nothing saved is no failure."""
    assert json.loads(here("sessions", "ls", "--json").stdout)["sessions"] == []
    assert here("sessions", "ls").returncode == 0
