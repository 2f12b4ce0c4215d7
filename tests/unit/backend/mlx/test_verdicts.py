"""The check at load is remembered for the same weights and versions, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlx_lm.models import llama

from pie_mlx.backend.mlx import backend as backend_module
from pie_mlx.backend.mlx.backend import MlxBackend, ModelIdentity
from pie_mlx.backend.mlx.cache import Form
from pie_mlx.backend.mlx.verdicts import Verdict, Verdicts


def test_a_kept_verdict_is_found(tmp_path: Path) -> None:
    """Form and notice come back, for this model and device alone."""
    verdicts = Verdicts(tmp_path / "new")
    assert verdicts.find("a", "cpu") is None
    assert verdicts.keep("a", "cpu", Verdict(Form.SINGLE, "slow")) is None
    assert verdicts.find("a", "cpu") == Verdict(Form.SINGLE, "slow")
    assert verdicts.find("a", "metal") is None
    assert verdicts.find("b", "cpu") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"form": "other", "notice": null}', '{"form": "single"}'])
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str) -> None:
    """Whatever is in the file: the model is checked again."""
    verdicts = Verdicts(tmp_path)
    verdicts.keep("a", "cpu", Verdict(Form.GROUPED, None))
    next(tmp_path.glob("*.json")).write_text(content)
    assert verdicts.find("a", "cpu") is None


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Loading goes on; the user is told why the next one is slow too."""
    (tmp_path / "file").write_text("")
    told = Verdicts(tmp_path / "file" / "below").keep("a", "cpu", Verdict(Form.GROUPED, None))
    assert told is not None
    assert "could not be remembered" in told


def test_the_second_load_does_not_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The form is the same, without a run."""
    module = llama.Model(llama.ModelArgs("llama", 32, 1, 32, 2, 1e-6, 64))
    identity = ModelIdentity("llama", "weights", 64, frozenset())
    first = MlxBackend(module, identity, verdicts=Verdicts(tmp_path))

    def unexpected(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(backend_module, "choose_form", unexpected)
    assert MlxBackend(module, identity, verdicts=Verdicts(tmp_path)).form is first.form
    with pytest.raises(AssertionError, match="checked again"):
        MlxBackend(module, ModelIdentity("llama", "others", 64, frozenset()), verdicts=Verdicts(tmp_path))
