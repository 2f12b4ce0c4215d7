"""The log file: what it holds, what it never holds, and where it lies."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pie_mlx.cli import logfile
from pie_mlx.cli.commands import models

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]
SECRET = "my secret question"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the log lies in this test."""
    monkeypatch.setenv("PIE_MLX_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "pie-mlx.log"


def test_a_command_is_logged_without_what_was_asked(here: RunCli, log: Path) -> None:
    """Its name, its end and the kind of a usage error; no argument, for it may be a prompt."""
    here("config", "path")
    here("run", SECRET, "more", "words")
    here("run", SECRET, "--n", "0")
    text = log.read_text(encoding="utf-8")
    assert "begin pie-mlx config path" in text
    assert "end 0 after" in text
    assert "refused: invalid_parameter" in text
    assert SECRET not in text
    assert log.stat().st_mode & 0o077 == 0


def test_a_traceback_is_on_the_screen_with_debug_and_always_in_the_log(
    here: RunCli, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw is one sentence on the screen, and whole in the log."""

    def fail(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("nobody foresaw it")

    monkeypatch.setattr("pie_mlx.models.registry.load_registry", fail)
    done = here("models")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "nobody foresaw it" in done.stderr
    text = log.read_text(encoding="utf-8")
    assert "failed: fault\nTraceback" in text
    assert Path(models.__file__).name in text
    assert "Traceback" in here("models", "--debug").stderr


def test_the_log_is_where_flag_or_setting_say(here: RunCli, log: Path, tmp_path: Path) -> None:
    """The flag is stronger than the setting; ``config path`` and ``doctor`` know the place."""
    chosen, flagged = tmp_path / "chosen.log", tmp_path / "flagged.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIE_MLX_LOG_FILE", str(chosen))
        assert str(chosen) in here("config", "path").stdout
        assert str(flagged) in here("config", "path", "--log-file", str(flagged)).stdout
    assert [path.is_file() for path in (chosen, flagged, log)] == [True, True, False]


def test_a_log_that_cannot_be_written(here: RunCli, log: Path, tmp_path: Path) -> None:
    """A file that was asked for is refused; the usual one is missed with a note, and the command works."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    done = here("config", "path", "--log-file", str(blocked / "x.log"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written" in done.stderr
    log.parent.parent.joinpath("state").write_text("", encoding="utf-8")
    done = here("config", "path")
    assert done.returncode == 0
    assert done.stderr.count("cannot be written") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is full")
def test_a_log_on_a_full_disk_changes_nothing_else(here: RunCli, log: Path) -> None:
    """One note, the answer, and the exit code of what was done."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.symlink_to("/dev/full")
    done = here("config", "path")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "No space left" in done.stderr


def test_a_wrong_configuration_does_not_stop_its_mending(
    here: RunCli, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that read no settings still begin where a file is wrong."""
    monkeypatch.chdir(tmp_path)
    Path("pie-mlx.toml").write_text("no_such_key = 1\n", encoding="utf-8")
    assert here("completion", "bash").returncode == 0
    assert "begin pie-mlx completion" in log.read_text(encoding="utf-8")


def test_the_log_is_rotated(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never grows without bounds: old parts are kept under numbers, and then dropped."""
    monkeypatch.setattr(logfile, "_MAX_BYTES", 2000)
    logfile.begin("pie-mlx test", flag=None, debug=False)
    for number in range(200):
        logfile.LOG.info("line %d %s", number, "x" * 60)
    logfile.end(0, 0.0)
    parts = sorted(log.parent.glob("pie-mlx.log*"))
    assert [part.name for part in parts] == ["pie-mlx.log", "pie-mlx.log.1", "pie-mlx.log.2", "pie-mlx.log.3"]
    assert max(part.stat().st_size for part in parts) <= 2000
