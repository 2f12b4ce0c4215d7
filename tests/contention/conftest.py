"""What every scenario of contention starts from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.settings import EngineSettings

MakeDriver = Callable[..., Driver]


@pytest.fixture
def drive() -> MakeDriver:
    """Return a maker of engines without a thread: ``drive(pages, **settings)``."""

    def make(pages: int, **settings: object) -> Driver:
        given = EngineSettings.model_validate({"pool_pages": pages, "page_size": 16, **settings})
        return Driver(FakeBackend(context_tokens=1 << 16), given)

    return make
