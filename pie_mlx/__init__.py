"""Run language models on your own Mac, and branch them for free.

The public names, resolved on first use: ``import pie_mlx`` alone loads no model library. Example::

    import pie_mlx

    with pie_mlx.open_engine("smollm2-135m") as engine:
        with engine.context(engine.tokenizer.encode("Once")) as root, root.fork() as other:
            print(root.generate(max_tokens=8).text, other.generate(max_tokens=8).text)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pie_mlx import errors
    from pie_mlx.engine import Completion, Context, Engine, EngineSettings, Piece, Request
    from pie_mlx.errors import PieError
    from pie_mlx.models.tokenizer import Tokenizer
    from pie_mlx.open import open_engine
    from pie_mlx.sampling import Sampling

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Context",
    "Engine",
    "EngineSettings",
    "PieError",
    "Piece",
    "Request",
    "Sampling",
    "Tokenizer",
    "__version__",
    "errors",
    "open_engine",
]

_HOMES = {
    "Completion": "pie_mlx.engine",
    "Context": "pie_mlx.engine",
    "Engine": "pie_mlx.engine",
    "EngineSettings": "pie_mlx.engine",
    "PieError": "pie_mlx.errors",
    "Piece": "pie_mlx.engine",
    "Request": "pie_mlx.engine",
    "Sampling": "pie_mlx.sampling",
    "Tokenizer": "pie_mlx.models.tokenizer",
    "open_engine": "pie_mlx.open",
}


def __getattr__(name: str) -> object:
    """Import the module that holds a public name, once.

    Raises:
        AttributeError: the package has no such public name.
    """
    if name == "errors":
        return importlib.import_module("pie_mlx.errors")
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message, name=name)
    value: object = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, resolved or not."""
    return sorted(__all__)
