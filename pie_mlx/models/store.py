"""What has been pulled, on disk: one folder a model, complete or not there.

``CACHE/models/SLOT`` holds a converted model, or only a record that points into the hub's cache, which
other programs share. The record is written last; without one nothing is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pie_mlx import config
from pie_mlx.errors import ModelCorrupt
from pie_mlx.models.folder import read_json
from pie_mlx.models.sources import FileSource, FolderSource, HubSource, PackageSource, Source

RECORD = "pie-mlx.json"


@dataclass(frozen=True, slots=True)
class Installed:
    """A model that is complete on this machine."""

    name: str
    source: str
    path: Path
    """The folder with config, weights and tokenizer."""
    slot: Path

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of the model's files."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def models_folder() -> Path:
    """Return the folder that holds the slots."""
    return config.folder("cache") / "models"


def hub_cache() -> Path:
    """Return the hub's cache: the one other programs use, or ours where PIE_MLX_CACHE_DIR moves it."""
    if os.environ.get("PIE_MLX_CACHE_DIR"):
        return config.folder("cache") / "hub"
    named = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface")
    return Path(named).expanduser() if named else Path(home).expanduser() / "hub"


def slot_name(name: str | None, source: Source) -> str:
    """Return the folder name of a model: its registry name, or one made from its source."""
    if name is not None:
        return name
    match source:
        case HubSource(repository, revision):
            return _plain(f"hf--{repository}--{revision or 'main'}")
        case PackageSource(distribution, version, member):
            return _plain(f"pypi--{distribution}-{version}--{Path(member).stem}")
        case FileSource(path):
            status = path.stat()
            identity = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
            return _plain(f"gguf--{path.stem}--{hashlib.sha256(identity.encode()).hexdigest()[:12]}")
        case FolderSource(path):
            return _plain(f"folder--{path.name}")


def _plain(text: str) -> str:
    """Return ``text`` with everything but plain characters replaced."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", text)


def find_installed(slot: str, source: str) -> Installed | None:
    """Return the model in ``slot`` if it is complete and came from ``source``."""
    record = models_folder() / slot / RECORD
    if not record.is_file():
        return None
    found = _read_record(record)
    return found if found is not None and found.source == source else None


def installed() -> tuple[Installed, ...]:
    """Return every complete model, by name."""
    records = sorted(models_folder().glob(f"*/{RECORD}"))
    return tuple(found for found in map(_read_record, records) if found is not None)


def _read_record(record: Path) -> Installed | None:
    """Return what a record says, None where its files are gone (the hub's cache was cleaned)."""
    document = read_json(record)
    try:
        name, source, path = document["name"], document["source"], Path(document["path"] or record.parent)
    except (KeyError, TypeError) as error:
        raise ModelCorrupt(record.parent.name, f"{record} is not a record of pie-mlx", "remove that folder") from error
    if not (path / "config.json").is_file() or not any(path.glob("model*.safetensors")):
        return None
    return Installed(str(name), str(source), path, record.parent)


def write_record(folder: Path, *, name: str, source: str, path: Path | None) -> None:
    """Write the record into ``folder``; ``path`` is where the files are if not beside it."""
    document = {"name": name, "source": source, "path": None if path is None else str(path)}
    (folder / RECORD).write_text(json.dumps(document, indent=2), encoding="utf-8")


def remove_slot(slot: Path) -> None:
    """Remove a slot; the record goes first, so that a half-removed model is not installed."""
    (slot / RECORD).unlink(missing_ok=True)
    shutil.rmtree(slot)


@contextmanager
def pulling(slot: str, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of ``slot``: two pulls of one model take turns; ``on_wait`` is called before waiting."""
    from filelock import FileLock, Timeout

    locks = config.folder("cache") / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{slot}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
