"""Where a model comes from, as one line of text and as a value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pie_mlx.errors import UsageError

_FORMS = "hf:OWNER/NAME[@REVISION], pypi:DISTRIBUTION==VERSION#MEMBER, a folder, or a .gguf file"
_HUB = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_PACKAGE = re.compile(r"pypi:([A-Za-z0-9][\w.-]*)==([\w.!+-]+)#([\w./ -]+)")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A repository of the model hub, at a revision (None is its main branch)."""

    repository: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A GGUF file inside a wheel of the package index."""

    distribution: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A model folder on this machine, used where it is."""

    path: Path


@dataclass(frozen=True, slots=True)
class FileSource:
    """A GGUF file on this machine, converted once."""

    path: Path


Source: TypeAlias = HubSource | PackageSource | FolderSource | FileSource


def parse_source(text: str) -> Source | None:
    """Return the source that ``text`` writes out, or None where it can only be a model's name.

    Raises:
        UsageError: the text begins like a source and is not a whole one.
    """
    if text.startswith("hf:"):
        found = _HUB.fullmatch(text)
        if found is None or ".." in text:
            raise UsageError(f"{text!r} is not a source: a hub's has the form hf:OWNER/NAME[@REVISION]")
        return HubSource(found[1], found[2])
    if text.startswith("pypi:"):
        found = _PACKAGE.fullmatch(text)
        if found is None:
            raise UsageError(f"{text!r} is not a source: a package's has the form pypi:DISTRIBUTION==VERSION#MEMBER")
        return PackageSource(found[1], found[2], found[3])
    return _local(text)


def _local(text: str) -> Source | None:
    """Return the folder or file ``text`` points at; a bare word is a path only if it says so."""
    path = Path(text).expanduser()
    if path.suffix.lower() == ".gguf":
        return FileSource(path)
    if text.startswith((".", "~", "/")) or (path.is_dir() and ("/" in text or (path / "config.json").is_file())):
        return FolderSource(path)
    return None


def require_source(text: str) -> Source:
    """Return the source that ``text`` writes out.

    Raises:
        UsageError: it is not a source.
    """
    source = parse_source(text)
    if source is None:
        raise UsageError(f"{text!r} is not a source; the forms are {_FORMS}")
    return source
