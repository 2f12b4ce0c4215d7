"""Engines over the fake device; each is checked and closed when its test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pie_mlx.backend.fake import FakeBackend, sequence_hash
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.engine.text import Codec
from pie_mlx.sampling import mix

StartEngine = Callable[..., Engine]


@pytest.fixture
def start() -> Iterator[StartEngine]:
    """Return a starter: ``start(pages, backend=…, codec=…, **settings)``."""
    engines: list[Engine] = []
    devices: list[FakeBackend] = []

    def make(pages: int, backend: FakeBackend | None = None, codec: Codec | None = None, **settings: object) -> Engine:
        device = backend or FakeBackend()
        devices.append(device)
        given = EngineSettings.model_validate({"pool_pages": pages, "page_size": 16, **settings})
        engines.append(Engine.start(lambda: device, given, codec))
        return engines[-1]

    yield make
    for device in devices:
        device.faults.release.set()
    for engine in engines:
        if engine.is_alive:
            engine.check()
        engine.close()
        engine.check()
        engine.clear_cache()
        assert engine.readings().pages.free == engine.readings().pages.total


@pytest.fixture
def answer() -> Callable[[list[int], int], list[int]]:
    """Return the fake device's arithmetic: what it generates after a sequence, whatever the engine does."""

    def after(tokens: list[int], count: int) -> list[int]:
        sequence = list(tokens)
        for _ in range(count):
            sequence.append(mix(sequence_hash(sequence)) % 256)
        return sequence[len(tokens) :]

    return after
