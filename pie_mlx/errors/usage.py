"""Usage and configuration: exit code 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors.base import PieError


@dataclass(eq=False)
class UsageError(PieError):
    """The user asked for something that has no meaning."""

    code: ClassVar[str] = "usage"
    exit_code: ClassVar[int] = 2
    reason: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """The reason, as given."""
        return self.reason

    @property
    def hint(self) -> str | None:
        """The suggestion, as given."""
        return self.suggestion


@dataclass(eq=False)
class InvalidParameter(PieError):
    """A parameter is outside its range; found before any work is done."""

    code: ClassVar[str] = "invalid_parameter"
    exit_code: ClassVar[int] = 2
    name: str
    value: object
    allowed: str

    @property
    def message(self) -> str:
        """Name the parameter, its value and its range."""
        return f"{self.name} is {self.value!r}, but it must be {self.allowed}"


@dataclass(eq=False)
class ConfigError(PieError):
    """A configuration file or variable is wrong; names file, line and key."""

    code: ClassVar[str] = "config"
    exit_code: ClassVar[int] = 2
    where: str
    key: str | None
    reason: str
    line: int | None = None
    nearest: str | None = None

    @property
    def message(self) -> str:
        """Name file, line, key and what is wrong with it."""
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        return f"{place}: {self.reason}" if self.key is None else f"{place}: {self.key}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """Offer the nearest known key."""
        return None if self.nearest is None else f"did you mean {self.nearest!r}?"
