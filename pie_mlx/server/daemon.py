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
from pie_mlx.errors import EngineDead, PieError, UsageError
from pie_mlx.events import EngineEnded, Event
from pie_mlx.server.app import make_app
from pie_mlx.server.errors import DrainingError, SwitchingError
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.logs import LOG
from pie_mlx.server.settings import ServerSettings
from pie_mlx.server.shelf import Shelf, check_fits
from pie_mlx.server.state import ServerState

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.02
_LAST_WORDS_S = 3
"""What streams get to send their last event, once they were told to end."""


class Daemon:
    """One server over one engine, which its caller owns and closes afterwards."""

    def __init__(self, engine: Engine, settings: ServerSettings, shelf: Shelf | None = None) -> None:
        """Bind the socket; with a ``shelf`` clients may change the model.

        Raises:
            UsageError: the settings let strangers in, or the address cannot be bound.
        """
        settings.check()
        self._engine = engine
        self._opened: list[Engine] = []
        self._shelf = shelf
        self._name = "" if shelf is None else shelf.first
        self._switching: asyncio.Task[None] | None = None
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
            if not self._has_ended_at_once:
                for engine in self._opened:
                    engine.close()
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
        self.state = self._serve(self._engine, self._settings)
        server = self._server = _Server(_config(self._current, self._settings))
        ready = asyncio.ensure_future(self._when_started(server, on_ready))
        with _handling_signals(loop, self._on_signal):
            try:
                await server.serve(sockets=[self._socket])
            finally:
                ready.cancel()
                if self._drain is not None:
                    self._drain.cancel()
                if self._switching is not None and not self._has_ended_at_once:
                    await asyncio.wait({self._switching})
                await asyncio.to_thread(self._current().close)

    def _serve(self, engine: Engine, settings: ServerSettings) -> ServerState:
        """Return the state of a server over an engine."""
        state = ServerState(engine, settings)
        if self._shelf is not None:
            state.shelf, state.switch = self._shelf, self._switch
        state.pump.observe(lambda event: self._observe(engine, event))
        state.pump.start()
        return state

    def _current(self) -> ServerState:
        """Return the state of what is served now."""
        assert self.state is not None, "a server that serves has a state"
        return self.state

    async def _switch(self, name: str, exchange: Exchange) -> None:
        """Change to a model. A client that leaves does not stop what has begun.

        Raises:
            PieError: the model is not here, does not fit or cannot be loaded, or another change runs.
        """
        state, shelf = self._current(), self._shelf
        assert shelf is not None, "only a state with a shelf can switch"
        if name in (self._name, state.engine.facts.model, state.model):
            return
        await asyncio.to_thread(check_fits, shelf, name, self._name)
        if state.refusal is not None:
            raise state.refusal
        state.refuse(SwitchingError(name))
        self._switching = asyncio.ensure_future(self._change(state, name, exchange))
        self._switching.add_done_callback(_log_change)
        await asyncio.shield(self._switching)

    async def _change(self, state: ServerState, name: str, asking: Exchange) -> None:
        """Let what runs finish within the drain's time, end the engine, and open the other one or the old one again.

        Raises:
            PieError: the model cannot be loaded.
        """
        assert self._shelf is not None, "only a state with a shelf can switch"
        LOG.info("changing from model %s to %s", ascii(state.model), ascii(name))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while state.exchanges - {asking}:  # noqa: ASYNC110  (exchanges end one by one, on their own)
                    await asyncio.sleep(_LOOK_S)
        for exchange in state.exchanges - {asking}:
            exchange.abort(SwitchingError(name))
        while state.exchanges - {asking}:  # noqa: ASYNC110  (as above; each has its last word by now)
            await asyncio.sleep(_LOOK_S)
        old = state.engine
        await asyncio.to_thread(state.close)
        await asyncio.to_thread(old.close)
        try:
            self._take(await asyncio.to_thread(self._shelf.open, name), name)
        finally:
            if self._engine is old:
                await self._go_back()

    def _take(self, engine: Engine, name: str) -> None:
        """Serve an engine; the name that the settings give belongs to the first model."""
        self._opened.append(engine)
        self._engine, self._name = engine, name
        is_first = self._shelf is not None and name == self._shelf.first
        settings = self._settings if is_first else self._settings.model_copy(update={"served_name": None})
        self.state = self._serve(engine, settings)

    async def _go_back(self) -> None:
        """Open the old model again; without any model the server ends as if its engine had died."""
        assert self._shelf is not None, "only a state with a shelf can switch"
        try:
            engine = await asyncio.to_thread(self._shelf.open, self._name)
        except PieError as error:
            LOG.info("the model that was served before cannot be opened again: %s", ascii(str(error)))
            self._begin_drain()
        else:
            self._take(engine, self._name)

    async def _when_started(self, server: uvicorn.Server, on_ready: Callable[[], None]) -> None:
        """Tell that connections are taken."""
        while not server.started:  # noqa: ASYNC110  (uvicorn has a flag, and no event)
            await asyncio.sleep(_LOOK_S)
        on_ready()

    def _observe(self, engine: Engine, event: Event) -> None:
        """Drain when the engine that is served has ended; called on the pump's thread."""
        if isinstance(event, EngineEnded) and engine is self._engine and self._loop is not None:
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


def _log_change(change: asyncio.Task[None]) -> None:
    """Note how a change of the model ended, also where its client has gone."""
    error = None if change.cancelled() else change.exception()
    LOG.info("the model was %s", "changed" if error is None else f"not changed: {str(error)!a}")


class _Server(uvicorn.Server):
    """uvicorn's server, without its own signal handlers: the daemon has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def _config(current: Callable[[], ServerState], settings: ServerSettings) -> uvicorn.Config:
    """Return uvicorn's settings: its own parser in Python, no second log, no trust in proxies' headers."""
    return uvicorn.Config(
        make_app(current),
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
