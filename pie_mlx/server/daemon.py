"""The daemon's life: bind, serve, drain, end.

The first SIGTERM or SIGINT drains: nothing new begins, what runs may finish within its time, then the server ends.
The second ends everything at once. An engine that dies drains the server too, and its exit code says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from pie_mlx.engine import Engine
from pie_mlx.errors import EngineDead, UsageError
from pie_mlx.events import EngineEnded, Event
from pie_mlx.server.app import make_app
from pie_mlx.server.errors import DrainingError
from pie_mlx.server.logs import LOG
from pie_mlx.server.settings import ServerSettings
from pie_mlx.server.state import ServerState

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.02
_LAST_WORDS_S = 3
"""What streams get to send their last event, once they were told to end."""


class Daemon:
    """One server over one engine, which its caller owns and closes afterwards."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        """Bind the socket.

        Raises:
            UsageError: the settings let strangers in, or the address cannot be bound.
        """
        settings.check()
        self._engine = engine
        self._settings = settings
        self._socket = _bind(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._drain: asyncio.Task[None] | None = None
        self._has_ended_at_once = False
        self.state: ServerState | None = None

    @property
    def url(self) -> str:
        """Where the server is reached."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    @property
    def has_ended_at_once(self) -> bool:
        """Whether a second signal ended it: the engine may still be at work."""
        return self._has_ended_at_once

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Serve until the end; return the exit code: 0, or that of an engine that died.

        ``on_ready`` is called when connections are taken.
        """
        try:
            asyncio.run(self._main(on_ready))
        finally:
            self._socket.close()
        return 0 if self._engine.is_alive else EngineDead.exit_code

    def stop(self) -> None:
        """Do what a signal does: drain, and at the second call end at once; safe from any thread."""
        if self._loop is not None:
            # A loop that is closed has ended already.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_signal)

    async def _main(self, on_ready: Callable[[], None]) -> None:
        """Serve on the running loop."""
        loop = self._loop = asyncio.get_running_loop()
        state = self.state = ServerState(self._engine, self._settings)
        state.pump.observe(self._observe)
        state.pump.start()
        server = self._server = _Server(_config(state, self._settings))
        ready = asyncio.ensure_future(self._when_started(server, on_ready))
        with _handling_signals(loop, self._on_signal):
            try:
                await server.serve(sockets=[self._socket])
            finally:
                ready.cancel()
                if self._drain is not None:
                    self._drain.cancel()
                await asyncio.to_thread(state.close)

    async def _when_started(self, server: uvicorn.Server, on_ready: Callable[[], None]) -> None:
        """Tell that connections are taken."""
        while not server.started:  # noqa: ASYNC110  (uvicorn has a flag, and no event)
            await asyncio.sleep(_LOOK_S)
        on_ready()

    def _observe(self, event: Event) -> None:
        """Drain when the engine has ended; called on the pump's thread."""
        if isinstance(event, EngineEnded) and self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_drain)

    def _on_signal(self) -> None:
        """Drain at the first signal, end at the second."""
        if self._drain is None:
            self._begin_drain()
        else:
            self._end_at_once()

    def _begin_drain(self) -> None:
        """Begin to drain, once."""
        if self._drain is None:
            self._drain = asyncio.ensure_future(self._finish_work())

    async def _finish_work(self) -> None:
        """Let what runs finish, within its time; then end the server."""
        state, server = self.state, self._server
        assert state is not None, "a server that serves has a state"
        assert server is not None, "a server that serves is there"
        LOG.info("draining: %d exchanges, %.0f s at most", len(state.exchanges), self._settings.drain_timeout_s)
        state.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while state.exchanges:  # noqa: ASYNC110  (exchanges end one by one, on their own)
                    await asyncio.sleep(_LOOK_S)
        state.abort_all(DrainingError())
        server.should_exit = True

    def _end_at_once(self) -> None:
        """End every exchange with a last word, and the server without waiting for more."""
        state, server = self.state, self._server
        assert state is not None, "a server that serves has a state"
        assert server is not None, "a server that serves is there"
        if self._has_ended_at_once:
            # The third: whoever asks three times does not want to hear why it takes so long.
            os._exit(128 + signal.SIGTERM)
        self._has_ended_at_once = True
        LOG.info("ending at once: %d exchanges", len(state.exchanges))
        state.abort_all(DrainingError())
        server.force_exit = True
        server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server, without its own signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _config(state: ServerState, settings: ServerSettings) -> uvicorn.Config:
    """Return uvicorn's settings: its own parser in Python, no second log, no trust in proxies' headers."""
    return uvicorn.Config(
        make_app(state),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=_LAST_WORDS_S,
        h11_max_incomplete_event_size=settings.max_header_bytes * 2,
    )


def _bind(settings: ServerSettings) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: the address is taken, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=256)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}",
            "choose another --port (0 takes a free one) or --host",
        ) from error


@contextlib.contextmanager
def _handling_signals(loop: asyncio.AbstractEventLoop, handle: Callable[[], None]) -> Iterator[None]:
    """Have signals handled on the loop, where this is the main thread; put the handlers back afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
