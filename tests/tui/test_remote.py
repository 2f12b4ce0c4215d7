"""The engine screen over a server elsewhere: a real one on the loopback, over the fake device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import UsageError
from pie_mlx.server.daemon import Daemon
from pie_mlx.server.settings import ServerSettings
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.remote import RemoteServer
from pie_mlx.tui.widgets.engine.page_map import PageMap
from pie_mlx.tui.widgets.frame.bars import AlarmBanner, TitleBar
from pie_mlx.tui.widgets.frame.table import Table

Serve = Callable[[Engine], Daemon]
_SERVED = Path(__file__).parents[1] / "engine" / "server" / "conftest.py"


@pytest.fixture(scope="module")
def served(load_module: Callable[[str, Path], ModuleType]) -> ModuleType:
    """Return what the server's own tests run on."""
    return load_module("tui_served", _SERVED)


@pytest.fixture
def engine(served: ModuleType) -> Iterator[Engine]:
    """Start an engine that a server takes."""
    settings = EngineSettings(pool_pages=64, page_size=16)
    with Engine.start(served.LetterBackend, settings, served.make_tokenizer()) as started:
        yield started


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve engines on free ports; all servers end with the test."""
    running: list[tuple[Daemon, threading.Thread]] = []

    def start(engine: Engine) -> Daemon:
        daemon, ready = Daemon(engine, ServerSettings(port=0, drain_timeout_s=1.0)), threading.Event()
        thread = threading.Thread(target=daemon.run, args=(ready.set,), daemon=True)
        thread.start()
        assert ready.wait(20)
        running.append((daemon, thread))
        return daemon

    yield start
    for daemon, thread in running:
        daemon.stop()
        thread.join(20)


def test_a_server_is_watched_until_it_goes_away(
    engine: Engine, serve: Serve, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """Its pages and contexts are on the map; when it ends, a banner says so on every screen."""
    daemon = serve(engine)
    remote = RemoteServer(daemon.url, look_s=0.05)
    app = open_app(Sources(remote=remote))

    async def scenario(pilot: Pilot[None]) -> None:
        page_map, title = app.screen.query_one(PageMap), app.screen.query_one(TitleBar)
        await wait_until(pilot, lambda: page_map.num_pages == 64)
        assert daemon.url in title.subject
        root = engine.context(list(range(1, 40)), name="remote [/x]")
        root.prefill().result()
        fork = root.fork()
        await wait_until(pilot, lambda: any(len(page.owners) == 2 for page in app.desk.gauges.pages))
        assert "remote [/x]" in app.screen.query_one("#contexts", Table).text
        await pilot.press("C")
        fork.close()
        root.close()
        daemon.stop()
        await wait_until(pilot, lambda: app.screen.query_one(AlarmBanner).display)
        assert title.state[0] == "✗ no answer"
        await pilot.press("2")
        assert app.screen.query_one(AlarmBanner).alarm.kind == "unreachable"

    drive(app, scenario)


def test_a_server_that_comes_back_ends_the_alarm(
    engine: Engine, serve: Serve, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """The first look fails, a later one does not: the banner goes."""
    remote = RemoteServer("http://127.0.0.1:9", look_s=0.05)
    app = open_app(Sources(remote=remote))

    async def scenario(pilot: Pilot[None]) -> None:
        banner = app.screen.query_one(AlarmBanner)
        await wait_until(pilot, lambda: banner.display)
        remote.url = serve(engine).url
        await wait_until(pilot, lambda: not banner.display)
        assert app.screen.query_one(PageMap).num_pages == 64

    drive(app, scenario)


def test_a_quiet_server_draws_no_frames(
    engine: Engine, serve: Serve, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """It is asked again and again, but what stays the same posts nothing."""
    remote = RemoteServer(serve(engine).url, look_s=0.01)
    app = open_app(Sources(remote=remote))

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: bool(app.desk.gauges.readings) and app.desk.bridge.wants_pages)
        await wait_until(pilot, lambda: app.screen.query_one(PageMap).num_pages == 64)
        looks = 0
        whole = remote.look

        def look(*, with_map: bool = False) -> Any:
            nonlocal looks
            looks += 1
            return whole(with_map=with_map)

        remote.look = look  # type: ignore[method-assign]
        await wait_until(pilot, lambda: looks > 2)
        taken = app.desk.gauges.readings
        await wait_until(pilot, lambda: looks > 6)
        assert app.desk.gauges.readings is taken

    drive(app, scenario)


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://"])
def test_no_address(url: str) -> None:
    """What is no address is refused before anything is asked."""
    with pytest.raises(UsageError, match="not an address"):
        RemoteServer(url)


def test_nobody_answers() -> None:
    """A look at nothing names the address and what starts a server."""
    with pytest.raises(UsageError, match=r"no server answers at http://127\.0\.0\.1:9"):
        RemoteServer("http://127.0.0.1:9").look()
