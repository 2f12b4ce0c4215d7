"""The recurrent state of contexts: immutable arrays, so that a fork shares them at no cost.

The rows of a batch leave one :class:`StateBatch`; a context's state is its row of it. A next step over the same
rows in the same order takes the batch as it is, any other gathers its rows. Rows can only be stacked if their
states have equal shapes: a state that grows at first (a short convolution before it has seen enough) waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from pie_mlx.backend.mlx.layout import StateLeaf

Entries = tuple[tuple[mx.array | None, ...], ...]
"""The arrays of each state leaf, ``[rows, ...]``; None where a layer has none yet."""


class StateBatch:
    """The states of the rows of one pass."""

    def __init__(self, entries: Entries, num_rows: int) -> None:
        """Take each leaf's arrays."""
        self.entries = entries
        self.num_rows = num_rows
        self.signature = tuple(
            None if array is None else (array.shape[1:], array.dtype) for entry in entries for array in entry
        )
        """Equal for states that can be stacked."""

    def arrays(self) -> list[mx.array]:
        """Return all arrays, to be evaluated."""
        return [array for entry in self.entries for array in entry if array is not None]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one context's state."""
        return sum(array.nbytes for array in self.arrays()) // self.num_rows


class RowState:
    """One context's state: a row of a batch. It never changes; only where it lies may."""

    __slots__ = ("batch", "row")

    def __init__(self, batch: StateBatch, row: int) -> None:
        """Take row ``row`` of ``batch``."""
        self.batch = batch
        self.row = row

    def settle(self) -> None:
        """Move into a batch of its own: a state that is kept would keep the whole batch in memory."""
        if self.batch.num_rows > 1:
            self.batch, self.row = StateBatch(_take(self.batch, [self.row]), 1), 0


def stack(states: Sequence[RowState]) -> Entries:
    """Return the states, all of one signature, as the rows of one batch; the arrays are new handles."""
    batch = states[0].batch
    same = all(state.batch is batch for state in states)
    if same and [state.row for state in states] == list(range(batch.num_rows)):
        # A model may assign to a part of an array, which changes the object it was handed.
        return tuple(tuple(None if array is None else mx.array(array) for array in entry) for entry in batch.entries)
    for state in states:
        state.settle()
    every = [state.batch.entries for state in states]
    return tuple(tuple(_join(arrays) for arrays in zip(*entry, strict=True)) for entry in zip(*every, strict=True))


def _join(arrays: Sequence[mx.array | None]) -> mx.array | None:
    """Concatenate one row from each state; all are None or none is."""
    found = [array for array in arrays if array is not None]
    return mx.concatenate(found) if found else None


def _take(batch: StateBatch, rows: list[int]) -> Entries:
    """Copy some rows out of a batch."""
    index = mx.array(rows)
    return tuple(tuple(None if array is None else array[index] for array in entry) for entry in batch.entries)


class StateCache(ArraysCache):
    """The cache of one recurrent layer during one pass; models look for this very class."""

    def __init__(self, leaf: StateLeaf, entries: Entries | None) -> None:
        """Start from the states of the pass's rows; None: they have read nothing yet."""
        super().__init__(leaf.size)
        if entries is not None:
            self.cache = list(entries[leaf.entry])  # type: ignore[arg-type]
