"""The root of all errors, and how its fields become JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

Fact: TypeAlias = "str | int | float | bool | list[Fact] | dict[str, Fact] | None"
"""What an error's field may hold once it is JSON."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds pages while somebody waits: one line of a starvation report."""

    name: str
    pages: int
    shared_pages: int
    idle_s: float

    def __str__(self) -> str:
        """Render the holder as the report shows it."""
        return f"{self.name} holds {self.pages} pages ({self.shared_pages} shared), idle {self.idle_s:.1f} s"


@dataclass(eq=False)
class PieError(Exception):
    """Root of every error that pie-mlx raises on purpose."""

    code: ClassVar[str] = "failure"
    exit_code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Give ``Exception`` its message, so that tracebacks read well."""
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message: what happened, with its numbers."""
        return self.message

    @property
    def message(self) -> str:
        """What happened and why, in one sentence with its numbers."""
        return self.code.replace("_", " ")

    @property
    def hint(self) -> str | None:
        """What to do about it, as a command where one exists."""
        return None

    def to_json(self) -> dict[str, Fact]:
        """Return ``{code, message, hint, detail}``; ``detail`` holds every field."""
        detail: dict[str, Fact] = {f.name: _as_fact(getattr(self, f.name)) for f in fields(self)}
        return {"code": self.code, "message": self.message, "hint": self.hint, "detail": detail}


def _as_fact(value: object) -> Fact:
    """Turn a field's value into plain JSON without losing a number."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Holder):
        return {f.name: _as_fact(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_fact(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_fact(item) for item in value]
    return str(value)
