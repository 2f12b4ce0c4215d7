"""What all suites share: the engine, its weights, and how many trials of what length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pie_mlx.bench import baseline
from pie_mlx.bench.endless import EndlessBackend, twin
from pie_mlx.bench.explain import choice
from pie_mlx.bench.pairs import Measure, interleave
from pie_mlx.bench.report import Trials
from pie_mlx.bench.stopping import StoppableModel
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import Fact
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.platform import PlatformFacts, prepare

LONGEST_TRIAL_S = 6 * 3600.0
"""A trial over this is given up: a tree of prompts with a large model takes its time on a slow machine."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How much is measured."""

    num_trials: int = 5
    decode_tokens: int = 32
    delay_s: float = 0.0
    has_baseline: bool = True
    adapter: Path | None = None
    """The folder of an adapter over the model, for both sides."""
    on_trial: Callable[[int, int], None] | None = None
    """Told of each trial before it begins: its number, 0 for a warm-up, and how many there are."""


class DevicePeak:
    """The device's peak memory, read on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        """Read the device of ``engine``."""
        self._engine = engine

    def reset(self) -> None:
        """Start a new peak; what an earlier case left in the device's cache goes first."""
        self._engine.run_errand(baseline.reset_memory)

    def read(self) -> int:
        """Return the highest number of bytes since the last reset."""
        memory = self._engine.run_errand(self._engine.backend.memory)
        # MLX counts a peak from the next allocation on: without one, what is active is the peak.
        return max(memory["peak"], memory["active"])


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """One benchmark run: an engine with the prefix cache off, and the module behind it for the baseline."""

    engine: Engine
    backend: EndlessBackend
    module: Any
    """The model for the baseline, a :class:`StoppableModel`; untyped, as mlx-lm asks for the model itself."""
    encoder: Tokenizer
    options: BenchOptions
    bandwidth: float
    """Bytes that the device reads in a second, as measured just now."""
    weight_bytes: int
    """Bytes of weights that every step reads."""
    platform: PlatformFacts
    """The machine, as it was before MLX was imported."""
    meter: DevicePeak = field(repr=False)

    @property
    def chunk(self) -> int:
        """Prefill tokens a step on our side."""
        return self.engine.settings.prefill_chunk

    def measure(
        self,
        ours: Measure,
        theirs: Measure | None,
        *,
        num_trials: int | None = None,
        is_mlx_lm: bool = True,
        is_warm: bool = False,
    ) -> tuple[Trials, Trials | None]:
        """Run interleaved trials as the options say; a baseline of mlx-lm only where one is asked for.

        ``is_warm`` says that the case has warmed both sides up itself, at the same width but shorter.
        """
        return interleave(
            ours,
            theirs if self.options.has_baseline or not is_mlx_lm else None,
            num_trials=num_trials or self.options.num_trials,
            num_warmups=0 if is_warm else 1,
            delay_s=self.options.delay_s,
            meter=self.meter,
            on_trial=self.options.on_trial,
        )

    def attention(self) -> dict[str, Fact]:
        """Return how the last step really attended, and what the planner weighed for it."""
        plan = self.backend.inner.last_plan
        return {"attention": "no step has run" if plan is None else plan.explain(), "choice": choice(plan)}

    def page_bytes(self, engine: Engine | None = None) -> int:
        """Return the bytes of a page."""
        engine = engine or self.engine
        return engine.settings.page_size * engine.facts.kv_bytes_per_token

    def roofline_share(self, kv_bytes: int, step_s: float) -> float:
        """Return the share of the measured bandwidth that a step used, if it read weights and K/V once."""
        return (self.weight_bytes + kv_bytes) / self.bandwidth / step_s

    @contextmanager
    def twin_engine(self, pool_pages: int) -> Iterator[Engine]:
        """Run a second engine over the same weights with a pool of its own size."""
        settings = self.engine.settings.model_copy(update={"pool_pages": pool_pages, "pool_memory_bytes": None})
        with Engine.start(lambda: twin(self.backend), settings, self.encoder) as engine:
            yield engine


@contextmanager
def open_setting(folder: Path, settings: EngineSettings, options: BenchOptions) -> Iterator[BenchSetting]:
    """Load the model in ``folder``, without a prefix cache and without an end of sequence.

    Raises:
        ModelError: the folder's model cannot be run.
        NotEnoughMemory: the pool does not fit this machine.
    """
    found = prepare()
    from pie_mlx.models.tokenizer import load_tokenizer

    encoder = load_tokenizer(folder)

    def make_backend() -> EndlessBackend:
        from pie_mlx.backend.mlx.backend import BackendOptions, MlxBackend

        return EndlessBackend(MlxBackend.load(folder, BackendOptions(adapter=options.adapter)))

    # A baseline runs as one errand, which the watchdog would take for a device that hangs.
    cold = settings.model_copy(
        update={"prefix_cache": False, "step_timeout_s": LONGEST_TRIAL_S, "errand_timeout_s": LONGEST_TRIAL_S}
    )
    with Engine.start(make_backend, cold, encoder) as engine:
        backend = engine.backend
        assert isinstance(backend, EndlessBackend), "the engine runs the backend it was given"
        module = StoppableModel(backend.inner.module)
        setting = BenchSetting(
            engine=engine,
            backend=backend,
            module=module,
            encoder=encoder,
            options=options,
            bandwidth=engine.run_errand(baseline.read_bandwidth),
            weight_bytes=engine.run_errand(lambda: baseline.step_bytes(backend.inner.module)),
            platform=found,
            meter=DevicePeak(engine),
        )
        try:
            yield setting
        finally:
            # A baseline may be in the midst of minutes of work, and the engine waits for its thread.
            module.stop()
