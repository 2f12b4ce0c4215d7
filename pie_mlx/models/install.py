"""Put a folder in place whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pie_mlx.errors import DiskFull

_PARTIAL = ".partial-"


@contextmanager
def installing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``; on success it takes the place of ``folder``, else it goes.

    Raises:
        DiskFull: the disk filled up while the folder was written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}{_PARTIAL}", dir=folder.parent))
    try:
        yield work
        _sync(work)
        work.chmod(0o755)
        _replace(work, folder)
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(folder) from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def is_disk_full(error: Exception) -> bool:
    """Whether an error means that the disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(folder: Path, need_bytes: int | None = None) -> DiskFull:
    """Return the error that says how much space ``folder``'s disk has, and how much is needed."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    need = "" if need_bytes is None else f", {need_bytes / 1e9:.2f} GB needed"
    return DiskFull(
        folder.name,
        f"no space left on the disk of {folder.parent} ({free / 1e9:.2f} GB free{need})",
        "free some space, remove a model (pie-mlx rm NAME), or set PIE_MLX_CACHE_DIR to another disk",
    )


def sweep_partials(parent: Path, name: str) -> list[Path]:
    """Remove what interrupted installs of ``name`` left in ``parent``; return what was removed.

    Call it only while holding the lock of ``name``: a running install looks the same.
    """
    if not parent.is_dir():
        return []
    leftovers = [path for path in parent.iterdir() if path.name.startswith(f".{name}{_PARTIAL}")]
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)
    return leftovers


def _sync(folder: Path) -> None:
    """Have every file on the disk before the rename makes them count."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _replace(work: Path, folder: Path) -> None:
    """Rename ``work`` to ``folder``; a folder that is there already is moved away first and then removed."""
    if not folder.exists():
        work.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}{_PARTIAL}", dir=folder.parent))
    folder.rename(old / folder.name)
    work.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
