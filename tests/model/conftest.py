"""The starter model on one engine for the whole session: loading it is what takes time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.open import open_folder

POOL_PAGES = 1024


@pytest.fixture(scope="session")
def _session_engine(starter: Path) -> Iterator[Engine]:
    """Load the starter once."""
    settings = EngineSettings(pool_pages=POOL_PAGES, page_size=16, prefill_chunk=512)
    with open_folder(starter, settings) as engine:
        yield engine


@pytest.fixture
def starter_engine(_session_engine: Engine) -> Iterator[Engine]:
    """The shared engine; every test leaves it without contexts, requests or cached pages."""
    yield _session_engine
    _session_engine.clear_cache()
    _session_engine.check()
    readings = _session_engine.readings()
    assert readings.contexts == (), "a test left contexts open"
    assert readings.pages.free == readings.pages.total, "a test left pages held"
