"""The models that a server can change to: what is installed, what it needs, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pie_mlx import platform
from pie_mlx.engine import Engine
from pie_mlx.errors import NotEnoughMemory
from pie_mlx.server.errors import NoSuchModelError

_USUAL_TOKENS = 8_192
"""The sequence whose memory is counted, where the model's context is not shorter."""


class Shelf(Protocol):
    """Models by name. Its methods may take a while, and are called off the event loop."""

    first: str
    """The name that opens what is served at the beginning."""

    def names(self) -> tuple[str, ...]:
        """Return the models that can be opened without a download."""
        ...

    def need_bytes(self, name: str) -> int:
        """Return what a model needs in memory.

        Raises:
            ModelError: it is not here, or its files are damaged.
        """
        ...

    def available_bytes(self) -> int | None:
        """Return the memory that is free now, None where the system does not say."""
        ...

    def open(self, name: str) -> Engine:
        """Load a model and return its engine.

        Raises:
            PieError: it cannot be loaded.
        """
        ...


class InstalledModels:
    """The pulled models of this machine."""

    def __init__(self, first: str, open_model: Callable[[str], Engine]) -> None:
        """Open models by ``open_model``, as ``first`` was opened."""
        self.first = first
        self._open = open_model

    def names(self) -> tuple[str, ...]:
        """Return the names of complete models."""
        from pie_mlx.models.store import installed

        return tuple(found.name for found in installed())

    def need_bytes(self, name: str) -> int:
        """Return weights as the device keeps them, K/V of a usual sequence, and working space."""
        from pie_mlx.models.estimate import memory_needed
        from pie_mlx.models.fetch import locate
        from pie_mlx.models.folder import check_weights, context_tokens, read_config, read_optional_json

        folder: Path = locate(name)
        config = read_config(folder)
        weights = sum(path.stat().st_size for path in check_weights(folder))
        is_cpu = platform.expected_device() != "metal"
        limit = context_tokens(folder.name, config, read_optional_json(folder / "tokenizer_config.json"))
        needed = memory_needed(
            config,
            int(weights * _growth(config)) if is_cpu else weights,
            min(_USUAL_TOKENS, limit),
            element_bytes=4 if is_cpu else 2,
        )
        return needed.total_bytes

    def available_bytes(self) -> int | None:
        """Return what the system calls available."""
        return platform.memory().available_bytes

    def open(self, name: str) -> Engine:
        """Load a model and start its engine."""
        return self._open(name)


def check_fits(shelf: Shelf, name: str, instead_of: str) -> None:
    """Refuse a model that does not fit, counting as free what the one that it replaces gives back.

    Raises:
        NoSuchModelError: it is none of the shelf's: a client must not reach other files by their paths.
        ModelError: the files of one of the two are damaged.
        NotEnoughMemory: it needs more than would be free.
    """
    if name not in (*shelf.names(), shelf.first):
        raise NoSuchModelError(f"model {name[:100]!r} here")
    need, free = shelf.need_bytes(name), shelf.available_bytes()
    if free is None:
        return
    free += shelf.need_bytes(instead_of)
    if need > free:
        raise NotEnoughMemory(f"model {name}", need, free)


def _growth(config: Mapping[str, Any]) -> float:
    """Return how much larger weights are as float32, in which the CPU keeps them."""
    table = config.get("quantization")
    if not isinstance(table, dict):
        return 4 / 2
    bits, group = int(table.get("bits", 4)), int(table.get("group_size", 64))
    # Each group has a scale and a bias of 16 bits.
    return 32 / (bits + 32 / group)
