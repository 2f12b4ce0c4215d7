"""Recurrent states: rows of a batch that are stacked, shared and moved out without changing."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from pie_mlx.backend.mlx.layout import StateLeaf
from pie_mlx.backend.mlx.state import Entries, RowState, StateBatch, StateCache, stack


def _batch(rows: int, start: float = 0.0) -> StateBatch:
    """Return a batch of one leaf with two arrays, the second of which is not there yet."""
    return StateBatch(((mx.arange(rows * 3).reshape(rows, 3) + start, None),), rows)


def _first(entries: Entries) -> list[list[float]]:
    """Read the first array."""
    array = entries[0][0]
    assert array is not None
    rows: list[list[float]] = np.array(array).tolist()
    return rows


def test_a_batch_in_its_own_order_is_taken_as_it_is() -> None:
    """The same rows in the same order come back, as handles of their own."""
    batch = _batch(3)
    entries = stack([RowState(batch, row) for row in range(3)])
    assert _first(entries) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    handed = entries[0][0]
    assert handed is not None
    handed[0] = 99
    assert _first(batch.entries) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("rows", [[2, 0], [0, 1], [1, 1, 2], [0]])
def test_other_rows_or_orders_are_gathered(rows: list[int]) -> None:
    """Rows come in the order asked for, and none is another's."""
    batch = _batch(3)
    assert _first(stack([RowState(batch, row) for row in rows])) == [[3 * r, 3 * r + 1, 3 * r + 2] for r in rows]


def test_rows_of_several_batches_are_put_together() -> None:
    """Contexts that did not run together last time can."""
    one, two = RowState(_batch(2), 1), RowState(_batch(1, start=100), 0)
    entries = stack([two, one])
    assert _first(entries) == [[100, 101, 102], [3, 4, 5]]
    assert entries[0][1] is None


def test_a_kept_state_lets_go_of_its_batch() -> None:
    """Once a row went another way, keeping it does not keep the rows beside it."""
    batch = _batch(8)
    state = RowState(batch, 5)
    stack([state, RowState(batch, 2)])
    assert (state.batch.num_rows, state.row) == (1, 0)
    assert _first(state.batch.entries) == [[15, 16, 17]]
    assert state.batch.bytes_per_row == batch.bytes_per_row == 12


def test_states_of_different_shapes_have_different_signatures() -> None:
    """What cannot be stacked is told apart, what can is not."""
    assert _batch(1).signature == _batch(4).signature
    assert StateBatch(((mx.zeros((1, 2)), None),), 1).signature != _batch(1).signature
    assert StateBatch(((None, None),), 1).signature != _batch(1).signature


def test_a_state_cache_is_what_models_look_for() -> None:
    """It starts empty, counts no padding and takes assignments."""
    cache = StateCache(StateLeaf(0, 2), None)
    assert cache.cache == [None, None]
    assert cache.make_mask(5) is None
    cache[1] = mx.ones((1, 2))
    assert cache[0] is None
    assert StateCache(StateLeaf(0, 2), ((mx.ones((1, 1)), None),)).cache[0] is not None
