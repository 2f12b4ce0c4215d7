"""``run --schema``: what a schema file must be, and what an answer that it holds is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RunCli = Callable[..., "subprocess.CompletedProcess[str]"]

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        ('{"type": "nonsense"}', "schema", "Invalid type: nonsense"),
        ('{"$ref": "https://elsewhere/schema"}', "schema", "cannot be used"),
        ('{"type":', "usage", "line 1, column 9"),
        ("[1]", "usage", "not list"),
        ("\xff", "usage", "not UTF-8"),
        ("[" * 100_000, "usage", "nested too deeply"),
        (None, "usage", "cannot be read"),
    ],
)
def test_a_bad_schema_file_is_refused_before_a_model_loads(
    here: RunCli, tmp_path: Path, content: str | None, code: str, said: str
) -> None:
    """Exit 2, with the file and what is wrong with it."""
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    done = here("run", "x", "--schema", str(path), "--json", "-m", "no-such-model")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, code)
    assert said in error["message"]
    assert str(path) in error["message"]


def test_a_missing_package_names_the_command_that_installs_it(
    here: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without llguidance the error says what to install."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    done = here("run", "x", "--schema", str(path))
    assert done.returncode == 2
    assert "llguidance" in done.stderr
    assert "try: pip install 'pie-mlx[schema]'" in done.stderr


@pytest.mark.model
@pytest.mark.usefixtures("starter")
def test_every_answer_of_a_batch_is_json_of_the_schema(cli: RunCli, tmp_path: Path) -> None:
    """Four answers in one batch, each held on its own; at a limit the command says that the JSON is cut."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    args = ("run", "Invent a person.", "--schema", str(path), "--json", "--temp", "0.9", "--seed", "3")
    done = cli(*args, "--n", "4", "--pool-pages", "128")
    people = [json.loads(choice["text"]) for choice in json.loads(done.stdout)["choices"]]
    assert [set(person) for person in people] == [{"name", "age"}] * 4
    assert all(isinstance(person["age"], int) for person in people)
    assert (len({person["name"] for person in people}) > 1, done.returncode) == (True, 0)
    cut = cli(*args, "--max-tokens", "4", "--pool-pages", "128")
    assert (cut.returncode, json.loads(cut.stdout)["finish_reason"]) == (1, "length")
    assert "before the JSON was complete" in cut.stderr
