"""What the endpoints share: the engine, its tokenizer, the gates, the runs, the figures."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from pie_mlx.engine import Engine
from pie_mlx.errors import PieError, TokenizerMissing
from pie_mlx.models.constrained import Grammars
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.search.run import Run
from pie_mlx.server.admission import Gate
from pie_mlx.server.bridge import Pump
from pie_mlx.server.errors import DrainingError, NoSuchModelError
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.metrics import Metrics
from pie_mlx.server.settings import ServerSettings
from pie_mlx.server.shelf import Shelf

Switch = Callable[[str, Exchange], Awaitable[None]]
"""Changes to a model by its name; the exchange is the one that asks for it."""


class ServerState:
    """One daemon's state. Used from the event loop's thread, but for the engine, the pump and the runs."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        """Make the state of a daemon over ``engine``.

        Raises:
            UsageError: the settings let strangers in.
            TokenizerMissing: the engine has no tokenizer.
        """
        settings.check()
        if not isinstance(engine.codec, Tokenizer):
            raise TokenizerMissing(engine.facts.model, "a server needs a tokenizer that encodes text")
        self.engine = engine
        self.settings = settings
        self.tokenizer: Tokenizer = engine.codec
        self.model = settings.served_name or engine.facts.model
        self.created_s = int(time.time())
        self.gate = Gate(settings.max_running, settings.max_waiting)
        self.search_gate = Gate(settings.max_searches, settings.max_waiting_searches)
        self.grammars = Grammars(self.tokenizer)
        self.runs: dict[str, Run] = {}
        self.search_threads = ThreadPoolExecutor(settings.max_searches, thread_name_prefix="pie-http-search")
        self.exchanges: set[Exchange] = set()
        self.is_draining = False
        self.refusal: PieError | None = None
        """What new work gets, None while it is taken."""
        self.shelf: Shelf | None = None
        self.switch: Switch | None = None
        self.pump = Pump(engine)
        self.metrics = Metrics(engine, self.gate, self.search_gate, self.model)
        self.pump.observe(self.metrics.observe)

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served here.

        Raises:
            NoSuchModelError: as its name says.
        """
        if name is not None and name not in (self.model, self.engine.facts.model):
            raise NoSuchModelError(f"model {name[:100]!r} here, only {self.model!r}")

    def deadline_s(self, wanted_s: float | None) -> float:
        """Return how long a request may take: what it asks for, but not more than the server allows."""
        limit = self.settings.request_timeout_s
        return limit if wanted_s is None else min(wanted_s, limit)

    def drain(self) -> None:
        """Let nothing new begin: the server ends."""
        self.is_draining = True
        self.refuse(DrainingError())

    def refuse(self, error: PieError) -> None:
        """Let nothing new begin: who waits and who comes gets ``error``."""
        self.refusal = error
        for gate in (self.gate, self.search_gate):
            gate.close(error)

    def abort_all(self, error: PieError) -> None:
        """End everything that runs, each with a typed error."""
        for exchange in list(self.exchanges):
            exchange.abort(error)

    @property
    def is_healthy(self) -> bool:
        """Whether the engine works: it is alive, and either idle or has moved within its own limits."""
        if not self.engine.is_alive or not self.pump.is_alive:
            return False
        readings = self.engine.readings()
        settings = self.engine.settings
        if not readings.requests:
            return True
        if readings.step_s is not None:
            return readings.step_s < settings.step_timeout_s
        youngest_s = min(request.age_s for request in readings.requests)
        return min(time.monotonic() - self.pump.moved_s, youngest_s) < settings.stall_timeout_s

    def close(self) -> None:
        """Stop the threads."""
        self.pump.stop()
        self.search_threads.shutdown(wait=True, cancel_futures=True)
