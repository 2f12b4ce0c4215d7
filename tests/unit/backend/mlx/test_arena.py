"""The arena is written in place, and its slots survive a round trip bit for bit."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from pie_mlx.backend.mlx.arena import Arena, LayerShape, Writes, probe_donation


@pytest.mark.parametrize("slots", [[4, 5, 6], [9, 2, 40]])
def test_a_write_copies_no_array(slots: list[int]) -> None:
    """Consecutive and scattered writes leave the peak below one array's size above what is held."""
    shape = LayerShape(2, 64, 2, 64, mx.float32, mx.float32)
    arena = Arena([shape, shape], 16_384)
    rows = mx.ones((2, 3, 64))
    mx.eval(rows)
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for layer in range(2):
        arena.write(layer, rows, rows, Writes(np.array(slots, dtype=np.int32)))
    arena.commit()
    mx.eval(arena.arrays())
    assert mx.get_peak_memory() - before < 16_384 * 64 * 4
    assert probe_donation()


def test_a_discarded_draft_leaves_the_arena_as_it_was() -> None:
    """What was drafted and not committed was never there."""
    shape = LayerShape(1, 8, 1, 8, mx.float32, mx.float32)
    arena = Arena([shape], 64)
    arena.write(0, mx.ones((1, 1, 8)), mx.ones((1, 1, 8)), Writes(np.array([5], dtype=np.int32)))
    arena.discard()
    assert not arena.read_slots(np.array([5], dtype=np.int32))["k.0"].any()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_slots_round_trip_bit_for_bit(dtype: mx.Dtype) -> None:
    """K and V of different widths come back as they were, in any order of slots, in every precision."""
    arena = Arena([LayerShape(2, 8, 1, 4, dtype, dtype), None], 64)
    mx.random.seed(0)
    keys, values = mx.random.normal((2, 3, 8)).astype(dtype), mx.random.normal((1, 3, 4)).astype(dtype)
    arena.write(0, keys, values, Writes(np.array([7, 3, 60], dtype=np.int32)))
    arena.commit()
    kept = arena.read_slots(np.array([7, 3, 60], dtype=np.int32))
    assert sorted(kept) == ["k.0", "v.0"]
    assert kept["k.0"].shape == (3, 2, 8)
    other = Arena(arena.shapes, 64)
    other.write_slots(np.array([1, 2, 9], dtype=np.int32), kept)
    again = other.read_slots(np.array([1, 2, 9], dtype=np.int32))
    assert all((kept[name] == again[name]).all() for name in kept)
    got = np.array(other.read(0)[0][:, mx.array([1, 2, 9])].astype(mx.float32))
    np.testing.assert_array_equal(got, np.array(keys.astype(mx.float32)))


def test_bytes_are_those_of_the_arrays() -> None:
    """The number that admission uses is the sum of what was allocated."""
    arena = Arena([LayerShape(2, 8, 1, 4, mx.float16, mx.float16)] * 3, 160)
    assert arena.nbytes == sum(array.nbytes for array in arena.arrays())
