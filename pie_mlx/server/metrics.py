"""Figures for Prometheus, in vLLM's words where it has one, and the last alarms."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pie_mlx.engine import Completion, Engine
from pie_mlx.events import Alarm, Event
from pie_mlx.server.admission import Gate

PREFIX = "pie_mlx:"
_MAX_ALARMS = 20
_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
_RUNNING = ("prefilling", "decoding", "restoring")


class Metrics:
    """One daemon's figures: what it counts itself, and what the engine's readings say when asked."""

    def __init__(self, engine: Engine, gate: Gate, search_gate: Gate, model: str) -> None:
        """Make a registry of the daemon's own."""
        self.registry = CollectorRegistry()
        self.alarms: deque[Alarm] = deque(maxlen=_MAX_ALARMS)
        self._model = model
        labels = {"labelnames": ("model_name",), "registry": self.registry}
        self._prompt = Counter(f"{PREFIX}prompt_tokens", "Prompt tokens of completions.", **labels)  # type: ignore[arg-type]
        self._cached = Counter(f"{PREFIX}prompt_tokens_cached", "Of them, K/V was there already.", **labels)  # type: ignore[arg-type]
        self._generated = Counter(f"{PREFIX}generation_tokens", "Tokens generated.", **labels)  # type: ignore[arg-type]
        self._ttft = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "From the engine's submission.",
            buckets=_SECONDS,
            **labels,  # type: ignore[arg-type]
        )
        self._e2e = Histogram(
            f"{PREFIX}e2e_request_latency_seconds",
            "From submission to the end.",
            buckets=_SECONDS,
            **labels,  # type: ignore[arg-type]
        )
        self._ended = Counter(
            f"{PREFIX}request_success",
            "Answers by why they ended.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._responses = Counter(
            f"{PREFIX}http_responses", "HTTP answers by path and status.", ("path", "status"), registry=self.registry
        )
        self._alarms = Counter(f"{PREFIX}alarms", "Watchdog alarms.", ("level", "kind"), registry=self.registry)
        inside = Gauge(f"{PREFIX}http_admitted", "Completions and searches inside.", ("kind",), registry=self.registry)
        waiting = Gauge(f"{PREFIX}http_waiting", "Those that wait for a place.", ("kind",), registry=self.registry)
        for kind, one in (("completion", gate), ("search", search_gate)):
            inside.labels(kind).set_function(lambda one=one: one.num_inside)  # type: ignore[misc]
            waiting.labels(kind).set_function(lambda one=one: one.num_waiting)  # type: ignore[misc]
        self.registry.register(_EngineCollector(engine, model))

    def observe(self, event: Event) -> None:
        """Count an alarm and keep it."""
        if isinstance(event, Alarm):
            self._alarms.labels(event.level, event.kind).inc()
            self.alarms.append(event)

    def count_completion(self, done: Completion, finish_reason: str) -> None:
        """Count one answer."""
        self._generated.labels(self._model).inc(done.completion_tokens)
        self._ended.labels(self._model, finish_reason).inc()
        self._e2e.labels(self._model).observe(done.wall_s)
        if done.ttft_s is not None:
            self._ttft.labels(self._model).observe(done.ttft_s)

    def count_prompt(self, tokens: int, cached: int) -> None:
        """Count the prompts of one exchange."""
        self._prompt.labels(self._model).inc(tokens)
        self._cached.labels(self._model).inc(cached)

    def count_response(self, path: str, status: int) -> None:
        """Count one HTTP answer; ``path`` is a route's, never a client's text."""
        self._responses.labels(path, str(status)).inc()

    def text(self) -> bytes:
        """Return all figures in Prometheus' text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Reads the engine when Prometheus asks: one consistent reading for all of its figures."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's gauges and counters."""
        readings = self._engine.readings()
        pages, phases = readings.pages, readings.waiting
        running = sum(phases.get(phase, 0) for phase in _RUNNING)
        usage = (pages.held - pages.cached) / pages.total
        gauges: dict[str, tuple[str, float]] = {
            "num_requests_running": ("Requests that take part in steps.", running),
            "num_requests_waiting": ("Requests that wait for pages or a place.", sum(phases.values()) - running),
            "kv_cache_usage_perc": ("Share of the pages that contexts hold, 0 to 1.", usage),
            "num_contexts": ("Open contexts.", len(readings.contexts)),
            "sharing_ratio": ("Views per page that contexts hold; 1 is no sharing.", pages.sharing_ratio),
            "engine_alive": ("1 while requests can run.", float(readings.is_alive)),
        }
        for name, (about, value) in gauges.items():
            yield self._gauge(name, about, value)
        family = GaugeMetricFamily(f"{PREFIX}pages", "Pages by who views them.", labels=("model_name", "kind"))
        for kind in ("total", "free", "private", "shared", "cached"):
            family.add_metric((self._model, kind), getattr(pages, kind))
        yield family
        for name, value in sorted(readings.counters.items()):
            counter = CounterMetricFamily(f"{PREFIX}engine_{name}", "Counted by the engine.", labels=("model_name",))
            counter.add_metric((self._model,), value)
            yield counter

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}{name}", about, labels=("model_name",))
        family.add_metric((self._model,), value)
        return family
