"""Saved contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pie_mlx.errors.base import PieError


@dataclass(eq=False)
class SnapshotError(PieError):
    """A saved context is missing, damaged, or was made for something else."""

    code: ClassVar[str] = "snapshot"
    exit_code: ClassVar[int] = 1
    name: str
    reason: str
    detail_facts: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Name the snapshot and what is wrong."""
        return f"snapshot {self.name!r}: {self.reason}"


class SnapshotMissing(SnapshotError):
    """No snapshot has this name."""

    code: ClassVar[str] = "snapshot_missing"


class SnapshotCorrupt(SnapshotError):
    """A file of the snapshot is truncated or its checksum is wrong."""

    code: ClassVar[str] = "snapshot_corrupt"


class SnapshotMismatch(SnapshotError):
    """The snapshot belongs to another model, dtype or page layout."""

    code: ClassVar[str] = "snapshot_mismatch"


class SnapshotVersion(SnapshotError):
    """The snapshot was written in a format that this version cannot read."""

    code: ClassVar[str] = "snapshot_version"
