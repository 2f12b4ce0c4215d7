"""Verdicts of the check at load, kept on disk: the same weights under the same versions are not checked twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pie_mlx import __version__
from pie_mlx.backend.mlx.cache import Form

_PACKAGES = ("mlx", "mlx-lm")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The form in which a model gave mlx-lm's logits, and what to tell the user."""

    form: Form
    notice: str | None


class Verdicts:
    """Verdicts in ``folder``, one small file each; a file that cannot be read counts as none."""

    def __init__(self, folder: Path) -> None:
        """Keep verdicts in ``folder``, which is made when one is first kept."""
        self._folder = folder

    def find(self, fingerprint: str, device: str) -> Verdict | None:
        """Return the verdict on a model, None if it was never checked here with these versions."""
        try:
            record = json.loads(self._path(fingerprint, device).read_text(encoding="utf-8"))
            return Verdict(Form(record["form"]), record["notice"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, fingerprint: str, device: str, verdict: Verdict) -> str | None:
        """Keep a verdict; return what to tell the user if it could not be kept: loading goes on without."""
        path = self._path(fingerprint, device)
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps({"form": verdict.form.value, "notice": verdict.notice}), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            return f"the check of this model could not be remembered ({error}): each load repeats it"
        return None

    def _path(self, fingerprint: str, device: str) -> Path:
        """Return the file of a model under the present versions."""
        key = [fingerprint, device, __version__, *(version(package) for package in _PACKAGES)]
        return self._folder / f"{hashlib.sha256('|'.join(key).encode()).hexdigest()[:32]}.json"
