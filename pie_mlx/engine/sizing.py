"""How many pages the pool gets: by request, or from the memory that is really free now.

The automatic size is half of what is available after a reserve for the system, but not more than four
full contexts or 32,768 tokens: more would only be touched and never used. An explicit size is obeyed or
refused, never quietly changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx import platform
from pie_mlx.backend.base import BackendFacts
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.errors import NotEnoughMemory

RESERVE_BYTES = 2 << 30
"""Left to the system and to the transients of a prefill."""

AUTO_SHARE = 0.5
"""Share of the memory behind the reserve that an automatic pool may take."""

AUTO_TOKENS = 32_768
"""An automatic pool is not larger than this many tokens."""

SENSIBLE_TOKENS = 1_024
"""An automatic pool that cannot hold this many tokens is refused."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The chosen size and the reason for it, in numbers."""

    num_pages: int
    page_bytes: int
    reason: str

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena, the trash page included."""
        return (self.num_pages + 1) * self.page_bytes


def choose_pool(facts: BackendFacts, settings: EngineSettings, available_bytes: int | None) -> PoolSize:
    """Choose the pool's size; ``available_bytes`` is what is free now, None where the system does not say.

    Raises:
        NotEnoughMemory: the size asked for, or any sensible one, does not fit what is free.
    """
    # A model of recurrent layers alone keeps nothing a token: its pages only count positions.
    page_bytes = max(1, facts.kv_bytes_per_token * settings.page_size)
    if settings.pool_pages is not None or settings.pool_memory_bytes is not None:
        asked = settings.pool_pages or (settings.pool_memory_bytes or 0) // page_bytes
        size = PoolSize(asked, page_bytes, "as asked")
        if asked < 1:
            raise NotEnoughMemory("the pool", page_bytes, settings.pool_memory_bytes or 0)
        if available_bytes is not None and size.arena_bytes > available_bytes:
            raise NotEnoughMemory(f"a pool of {asked:,} pages", size.arena_bytes, available_bytes)
        return size
    wanted = min(4 * facts.context_tokens, max(AUTO_TOKENS, facts.context_tokens)) // settings.page_size
    if available_bytes is None:
        return PoolSize(wanted, page_bytes, "four contexts; this system does not say what memory is free")
    states = 2 * facts.state_bytes * settings.max_batch
    usable = int(max(0, available_bytes - RESERVE_BYTES - states) * AUTO_SHARE)
    fitting = usable // page_bytes
    least = -(-min(SENSIBLE_TOKENS, facts.context_tokens) // settings.page_size)
    if fitting < least:
        raise NotEnoughMemory(f"a pool for one context of {SENSIBLE_TOKENS:,} tokens", least * page_bytes, usable)
    free = f"{available_bytes / 2**30:.1f} GiB"
    if fitting < wanted:
        return PoolSize(fitting, page_bytes, f"half of the {free} free now, less 2 GiB for the system")
    return PoolSize(wanted, page_bytes, f"{wanted * settings.page_size:,} tokens; {free} are free now")


def pool_by_memory(facts: BackendFacts, settings: EngineSettings) -> PoolSize:
    """Return the pool's size for this machine as it is now; a GPU may hold no more than its working set."""
    memory = platform.memory()
    known = [size for size in (memory.available_bytes, memory.working_set_bytes) if size is not None]
    return choose_pool(facts, settings, min(known, default=None))
