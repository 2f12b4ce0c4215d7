"""Prompts from arguments, pipes and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pie_mlx.cli.diagnostics import Stderr
from pie_mlx.cli.prompt import MAX_FILE_BYTES, checked_text, gather_prompt
from pie_mlx.errors import UsageError


def gather(prompt: str | None, *files: Path) -> str:
    """Gather without stdin."""
    return gather_prompt(prompt, files, stderr=Stderr("never"), joins_stdin=False)


def test_files_follow_the_prompt_under_their_names(tmp_path: Path) -> None:
    """A byte order mark and CRLF are no part of the text."""
    first, second = tmp_path / "a.txt", tmp_path / "b.md"
    first.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    second.write_text("你好 [red]\n", encoding="utf-8")
    assert gather("Compare:", first, second) == (
        "Compare:\n\nFile a.txt:\n```\none\ntwo\n```\n\nFile b.md:\n```\n你好 [red]\n```"
    )


def test_a_file_cannot_end_its_own_fence(tmp_path: Path) -> None:
    """The fence is longer than any in the text."""
    path = tmp_path / "a.md"
    path.write_text("```py\nx\n````\n")
    assert gather(None, path) == "File a.md:\n`````\n```py\nx\n````\n`````"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\x89PNG\r\n\x1a\n\xff", "not UTF-8"), (b"a\0b", "binary"), (b"x" * (MAX_FILE_BYTES + 1), "limit")],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Binary and huge files are named, before a model is loaded."""
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        gather("x", path)
    assert "x.bin" in caught.value.reason


def test_a_folder_is_refused_with_advice(tmp_path: Path) -> None:
    """Folders are not walked."""
    with pytest.raises(UsageError, match="is a folder"):
        gather("x", tmp_path)


@pytest.mark.parametrize("prompt", [None, "", " \n"])
def test_nothing_to_say_is_a_usage_error(prompt: str | None) -> None:
    """No model is asked to continue nothing."""
    with pytest.raises(UsageError, match="no prompt"):
        gather(prompt)


def test_an_argument_of_an_ascii_locale_is_read_as_utf_8() -> None:
    """Python hands such bytes over as surrogates."""
    assert gather("caf\udcc3\udca9") == "café"
    with pytest.raises(UsageError, match="not UTF-8"):
        gather("caf\udce9")


def test_text_is_checked_once_and_returned() -> None:
    """The ordinary case."""
    assert checked_text("it", "grün\n".encode()) == "grün\n"
