"""A saved context on disk: its tokens, and the K/V of the resident ones, in one file.

One safetensors file holds everything; its header carries the facts as JSON. One file means one rename:
a snapshot is complete or it does not exist, whenever the process or the machine ends. A SHA-256 over all
arrays is checked before anything is believed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from pie_mlx.errors import (
    InvalidParameter,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotMismatch,
    SnapshotMissing,
    SnapshotVersion,
)

SCHEMA = "pie-mlx.snapshot/1"
"""Written into every file; a reader refuses any other."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SUFFIX = ".safetensors"
_PARTIAL = ".partial-"
_TOKENS = "sequence"
_KV = "kv."

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What a file says of itself."""

    name: str
    model: str
    fingerprint: str
    num_tokens: int
    num_resident: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A loaded snapshot: all tokens, and K/V arrays of the first ``num_resident``, shape ``[num_resident, ...]``."""

    facts: SnapshotFacts
    tokens: list[int]
    arrays: dict[str, npt.NDArray[np.generic]]


class SnapshotStore:
    """Snapshots in one folder, by name."""

    def __init__(self, folder: Path) -> None:
        """Use ``folder``, which need not exist yet."""
        self.folder = folder

    def _path(self, name: str) -> Path:
        """Return the file of ``name``; names are file names, so their form is checked."""
        if not _NAME.fullmatch(name):
            raise InvalidParameter("snapshot name", name, "1 to 100 letters, digits, dots, dashes or underscores")
        return self.folder / f"{name}{_SUFFIX}"

    def save(self, name: str, *, model: str, fingerprint: str, tokens: list[int], arrays: Arrays) -> SnapshotFacts:
        """Write a snapshot, replacing one of the same name only when the new one is whole.

        ``arrays`` are K/V by name, first axis the leading tokens; may be empty (then all is recomputed).

        Raises:
            SnapshotError: the disk is full or the folder cannot be written; nothing has changed.
        """
        path = self._path(name)
        resident = {len(array) for array in arrays.values()}
        assert len(resident) <= 1, "every array has one row a resident token"
        payload: dict[str, npt.NDArray[np.generic]] = {_TOKENS: np.asarray(tokens, dtype=np.int32)}
        payload |= {_KV + key: np.ascontiguousarray(array) for key, array in arrays.items()}
        meta: dict[str, str | int] = {
            "schema": SCHEMA,
            "model": model,
            "fingerprint": fingerprint,
            "num_tokens": len(tokens),
            "num_resident": resident.pop() if resident else 0,
            "sha256": _checksum(payload),
        }
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._replace(path, payload, meta)
        except (OSError, SafetensorError) as error:
            raise SnapshotError(name, f"cannot be written: {error}") from error
        return self.look(name)

    def _replace(self, path: Path, payload: dict[str, npt.NDArray[np.generic]], meta: Mapping[str, str | int]) -> None:
        """Write beside ``path``, have it on the disk, then rename."""
        self._sweep()
        # A folder, because the library that writes the file has temporary files of its own beside it.
        own = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{_PARTIAL}{os.getpid()}-"))
        partial = own / path.name
        try:
            save_file(payload, partial, metadata={"pie_mlx": json.dumps(meta)})
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _sweep(self) -> None:
        """Delete what processes that were killed in the middle of a save have left."""
        for path in self.folder.glob(f"{_PARTIAL}*"):
            owner = path.name.removeprefix(_PARTIAL).partition("-")[0]
            if owner.isdecimal() and not _is_running(int(owner)):
                shutil.rmtree(path, ignore_errors=True)

    def look(self, name: str) -> SnapshotFacts:
        """Return what a snapshot says of itself, without reading its arrays.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotVersion: as their names say.
        """
        path = self._path(name)
        meta = self._meta(name, path)
        return SnapshotFacts(
            name,
            str(meta["model"]),
            str(meta["fingerprint"]),
            int(str(meta["num_tokens"])),
            int(str(meta["num_resident"])),
            path.stat().st_size,
        )

    def load(self, name: str, *, fingerprint: str) -> Snapshot:
        """Read a snapshot and check all of it.

        Raises:
            SnapshotMissing, SnapshotCorrupt, SnapshotVersion: as their names say.
            SnapshotMismatch: it belongs to another model, tokenizer or precision.
        """
        facts, path = self.look(name), self._path(name)
        if facts.fingerprint != fingerprint:
            reason = f"it was made with {facts.model} ({facts.fingerprint}), but this model is {fingerprint}"
            raise SnapshotMismatch(name, reason, {"saved": facts.fingerprint, "loaded": fingerprint})
        expected = self._meta(name, path)["sha256"]
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
        except (OSError, SafetensorError, ValueError) as error:
            raise SnapshotCorrupt(name, f"its file cannot be read: {error}") from error
        if _checksum(arrays) != expected:
            raise SnapshotCorrupt(name, "its checksum is wrong: the file was damaged or changed")
        tokens = arrays.pop(_TOKENS).tolist()
        return Snapshot(facts, tokens, {key.removeprefix(_KV): array for key, array in arrays.items()})

    def _meta(self, name: str, path: Path) -> dict[str, str | int]:
        """Read the header's facts."""
        if not path.exists():
            raise SnapshotMissing(name, f"there is no such snapshot in {self.folder}")
        try:
            with safe_open(path, framework="numpy") as file:
                meta = json.loads((file.metadata() or {}).get("pie_mlx", "{}"))
        except (OSError, SafetensorError, ValueError) as error:
            raise SnapshotCorrupt(name, f"its file cannot be read: {error}") from error
        schema = meta.get("schema")
        if schema != SCHEMA:
            raise SnapshotVersion(name, f"its format is {schema!r}, but this version reads {SCHEMA!r}")
        missing = {"model", "fingerprint", "num_tokens", "num_resident", "sha256"} - meta.keys()
        if missing:
            raise SnapshotCorrupt(name, f"its header lacks {', '.join(sorted(missing))}")
        facts: dict[str, str | int] = meta
        return facts

    def names(self) -> list[str]:
        """Return the names of all snapshots, sorted; whether they can be read is for :meth:`look` to say."""
        if not self.folder.exists():
            return []
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"[!.]*{_SUFFIX}"))

    def remove(self, name: str) -> int:
        """Delete a snapshot; return its bytes.

        Raises:
            SnapshotMissing: there is none of this name.
        """
        path = self._path(name)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            raise SnapshotMissing(name, f"there is no such snapshot in {self.folder}") from None
        return size


def _is_running(process: int) -> bool:
    """Whether there is a process of this id; one of another user counts."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _checksum(arrays: Arrays) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of all arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
