"""An engine without a thread: the same core, stepper and backend, driven step by step by its caller.

Measurements of the bookkeeping and tests of the scheduler use it, because it is deterministic: nothing
happens but in :meth:`Driver.step`.
"""

from __future__ import annotations

from pie_mlx.backend.base import Backend
from pie_mlx.engine.asking import Limits
from pie_mlx.engine.core import Core
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.engine.stepping import Stepper
from pie_mlx.errors import PieError
from pie_mlx.kv.pool import PagePool
from pie_mlx.kv.window import Window


class Driver:
    """A core and its backend, in one thread; ``settings.pool_pages`` must be given."""

    def __init__(self, backend: Backend, settings: EngineSettings) -> None:
        """Allocate the arena and open an empty core."""
        assert settings.pool_pages is not None, "nobody sizes the pool here"
        self.backend = backend
        pool = PagePool(settings.pool_pages, settings.page_size)
        backend.allocate(pool.num_pages, pool.page_size)
        facts = backend.facts
        is_cached = settings.prefix_cache and not facts.has_state
        self.core = Core(
            pool,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            max_cached_pages=int(pool.num_pages * settings.prefix_cache_share) if is_cached else 0,
            window=None if facts.window is None else Window(facts.window, settings.prefill_chunk),
        )
        limits = Limits(settings.page_size, settings.max_batch, settings.prefill_chunk, facts.max_batch_rows)
        self.stepper = Stepper(self.core, limits)

    def step(self) -> bool:
        """Run one step; return whether there was one to run."""
        work = self.stepper.next_step()
        if work is None:
            return False
        try:
            outcomes = self.backend.step(work.segments, lambda: self.stepper.foresee(work))
        except PieError as error:
            self.stepper.fail_step(work, error)
        else:
            self.stepper.commit(work, outcomes)
        return True

    def run(self) -> int:
        """Step until nothing can run; return the number of steps."""
        num_steps = 0
        while self.step():
            num_steps += 1
        return num_steps
