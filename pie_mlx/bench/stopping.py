"""A model that can be taken away from a baseline: its loops look at nothing but the model that they call."""

from __future__ import annotations

import threading
from typing import Any

from pie_mlx.errors import Cancelled


class StoppableModel:
    """The model as mlx-lm calls it, until it is told to stop; the call after that fails."""

    def __init__(self, module: Any) -> None:
        """Pass everything on to ``module``, which only mlx-lm knows the type of."""
        self._module = module
        self._is_stopped = threading.Event()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Run one forward pass.

        Raises:
            Cancelled: :meth:`stop` was called.
        """
        if self._is_stopped.is_set():
            raise Cancelled("shutdown")
        return self._module(*inputs, **named)

    def __getattr__(self, name: str) -> Any:
        """Return what the model has: its layers, its parameters, the caches it makes."""
        return getattr(self._module, name)

    def stop(self) -> None:
        """Fail every call from now on; may be called from any thread."""
        self._is_stopped.set()
