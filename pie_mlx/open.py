"""Open an engine by a model's name: the front door of the Python API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pie_mlx import platform
from pie_mlx.engine.engine import Engine
from pie_mlx.engine.settings import EngineSettings

if TYPE_CHECKING:
    from pie_mlx.backend.base import Backend
    from pie_mlx.models.fetch import PullProgress

DEFAULT_MODEL = "smollm2-135m"
"""The starter: small enough for any machine, and held by a package registry."""


def open_engine(
    model: str = DEFAULT_MODEL,
    settings: EngineSettings | None = None,
    *,
    pull_missing: bool = False,
    offline: bool = False,
    adapter: Path | str | None = None,
    progress: Callable[[PullProgress], None] | None = None,
    **changes: object,
) -> Engine:
    """Load ``model`` (a registry name, a source, a folder or a GGUF file) and return a running engine.

    ``changes`` are fields of :class:`EngineSettings`, e.g. ``pool_pages=512``. With ``pull_missing`` a
    model that is not here yet is pulled first, reporting to ``progress``. ``adapter`` is a folder with a
    LoRA or DoRA adapter that mlx-lm trained for the model.

    Raises:
        ModelError: the model or the adapter is missing, damaged or not supported.
        NotEnoughMemory: the pool does not fit this machine.
        pydantic.ValidationError: a setting is unknown or outside its range.
    """
    from pie_mlx.models.fetch import locate, pull
    from pie_mlx.models.registry import load_registry  # noqa: F401  (names are checked by locate)

    chosen = EngineSettings.model_validate({**(settings or EngineSettings()).model_dump(), **changes})
    if pull_missing:
        folder = pull(model, progress=progress or (lambda _progress: None), offline=offline)
    else:
        folder = locate(model)
    return open_folder(folder, chosen, adapter=None if adapter is None else Path(adapter).expanduser())


def open_folder(folder: Path, settings: EngineSettings | None = None, *, adapter: Path | None = None) -> Engine:
    """Load the MLX model in ``folder``, with an adapter over it, and return a running engine.

    Raises:
        ModelError: the folder's model or the adapter is damaged or not supported.
    """
    platform.prepare()
    from pie_mlx.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)

    def make_backend() -> Backend:
        from pie_mlx.backend.mlx.backend import BackendOptions, MlxBackend

        return MlxBackend.load(folder, BackendOptions(adapter=adapter), tokenizer=tokenizer)

    return Engine.start(make_backend, settings, tokenizer)
