"""What all suites share: the engine, its weights, and how many trials of what length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_mlx.bench.texts import Encoder
from pie_mlx.engine import Engine

if TYPE_CHECKING:
    import mlx.nn as nn


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """One benchmark run: an engine with the prefix cache off, and the module behind it for the baseline."""

    engine: Engine
    module: nn.Module
    encoder: Encoder
    num_trials: int = 5
    decode_tokens: int = 32
    chunk: int = 512
    delay_s: float = 0.0
    has_baseline: bool = True

    def attention_path(self) -> str:
        """Return which attention path the backend's last step really took."""
        return str(getattr(self.engine.backend, "last_path", "unknown"))
