"""A case: one line of the report before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pie_mlx.bench.report import Row
from pie_mlx.bench.setting import BenchSetting


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured, under which name; a case may give more than one row."""

    suite: str
    name: str
    measure: Callable[[BenchSetting], Sequence[Row]]

    @property
    def title(self) -> str:
        """Suite and name, as progress shows them."""
        return f"{self.suite}: {self.name}"
