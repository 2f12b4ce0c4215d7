"""Saving and restoring contexts: the engine's side, run on its thread between two steps."""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.backend.base import Backend
from pie_mlx.engine.core import Core
from pie_mlx.engine.sequence import Sequence
from pie_mlx.errors import DeviceFailed, SnapshotMismatch
from pie_mlx.ids import ContextId
from pie_mlx.kv.page_table import Slots
from pie_mlx.kv.snapshot import Arrays, Snapshot


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of a snapshot's tokens; the three counts add up to the sequence."""

    resident_tokens: int
    """Already in the pool: found in the prefix index."""
    loaded_tokens: int
    """Read from the file."""
    recomputed_tokens: int
    """Left to be computed with the next request: never saved, or no page was free for them."""


def saved_part(core: Core, context: ContextId) -> tuple[list[int], Slots]:
    """Return a context's tokens and the slots of its resident ones; the lock is held.

    Of a context that let K/V go there is no beginning to save: it is computed again.
    """
    sequence = core.get(context)
    slots = sequence.table.slots[: 0 if sequence.table.num_let_go else None]
    return sequence.tokens.copy(), slots.copy()


def restore(core: Core, backend: Backend, snapshot: Snapshot, name: str) -> tuple[Sequence, Restored]:
    """Open a context from a snapshot: prefix index first, then the file, the rest is computed when asked.

    Only free and cached pages are used: restoring never takes pages from a context that has them.
    The lock is held, no step is in flight.

    Raises:
        SnapshotMismatch: the arrays do not fit this model's arena.
    """
    sequence = core.open(snapshot.tokens, name)
    if core.index.is_on and snapshot.tokens:
        sequence.adopt_prefix(core.index, core.pool.page_size, before=len(snapshot.tokens) - 1)
        sequence.let_go(sequence.num_resident)
    resident = sequence.num_resident
    wanted = snapshot.facts.num_resident - resident
    loaded = _load(core, backend, sequence, snapshot, wanted) if wanted > 0 and snapshot.arrays else 0
    rest = len(snapshot.tokens) - resident - loaded
    return sequence, Restored(resident, loaded, rest)


def _load(core: Core, backend: Backend, sequence: Sequence, snapshot: Snapshot, wanted: int) -> int:
    """Read up to ``wanted`` tokens' K/V into fresh pages; return how many."""
    pool, table = core.pool, sequence.table
    lack = table.pages_needed(wanted) - pool.num_free
    if lack > 0:
        core.index.evict(lack)
    count = min(wanted, table.room() + pool.num_free * pool.page_size)
    if count == 0:
        return 0
    first = table.num_slots
    slots = table.reserve(count)
    part: Arrays = {key: array[first : first + count] for key, array in snapshot.arrays.items()}
    try:
        backend.write_slots(slots, dict(part))
    except (KeyError, ValueError, DeviceFailed) as error:
        core.close(sequence.id)
        raise SnapshotMismatch(snapshot.facts.name, f"its arrays do not fit this model: {error}") from error
    table.commit(count)
    sequence.index_pages(core.index if core.index.is_on else None, pool.page_size)
    return count
