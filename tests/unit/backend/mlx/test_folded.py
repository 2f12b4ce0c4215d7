"""Attention for the CPU backend: powers of two, parts that merge, blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

mx = pytest.importorskip("mlx.core")

from pie_mlx.backend.mlx import exponential, folded  # noqa: E402
from pie_mlx.backend.mlx.attention import causal_mask  # noqa: E402
from pie_mlx.backend.mlx.exponential import exp2, logsumexp, swiglu  # noqa: E402
from pie_mlx.backend.mlx.folded import attend_folded, cascade  # noqa: E402

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def double(array: Any) -> Array:
    """Return an array on the host, in double precision."""
    return np.array(array).astype(np.float64)


def random(*shape: int, seed: int) -> Any:
    """Return a float32 array that is the same in every run."""
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def plainly(queries: Any, keys: Any, values: Any, mask: Mask, scale: float) -> Array:
    """Attend in double precision, as the formula says."""
    group = queries.shape[1] // keys.shape[1]
    k, v = (np.repeat(double(each), group, axis=1) for each in (keys, values))
    scores = double(queries) @ np.swapaxes(k, -1, -2) * scale
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: Array = weights / weights.sum(axis=-1, keepdims=True) @ v
    return result


@pytest.mark.parametrize("size", [100, 200_000])
def test_powers_of_two_are_those_of_double_precision(size: int) -> None:
    """On small and on large arrays, which are computed in different ways."""
    x = np.linspace(-120, 120, size).astype(np.float32)
    assert np.abs(double(exp2(mx.array(x))) / np.exp2(x.astype(np.float64)) - 1).max() < 1e-5 / 2
    y = np.linspace(-20, 0, size).astype(np.float32)
    assert np.abs(double(exp2(mx.array(y))) / np.exp2(y.astype(np.float64)) - 1).max() < 1e-6


@pytest.mark.parametrize("size", [3, 200_001])
def test_what_is_masked_weighs_exactly_nothing(size: int) -> None:
    """A tiny rest would let a hidden key through; NaN must not become a number."""
    x = np.full(size, -np.inf, dtype=np.float32)
    x[1], x[2] = 0, np.nan
    got = np.array(exp2(mx.array(x)))
    assert got[1] == 1
    assert np.isnan(got[2])
    assert (np.delete(got, [1, 2]) == 0).all()


def test_the_log_normaliser_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are worked on in several blocks keep their order."""
    monkeypatch.setattr(exponential, "_BLOCK", 30_000)
    logits = random(7, 10_000, seed=1) * 4
    expected = np.log(np.exp(double(logits)).sum(axis=1))
    assert np.abs(double(logsumexp(logits)) - expected).max() < 1e-5


@pytest.mark.parametrize("rows", [1, 40])
def test_the_activation_is_the_models_own(rows: int) -> None:
    """Also far from zero, where the exponential leaves the range of its type."""
    gate, x = random(rows, 1536, seed=2) * 60, random(rows, 1536, seed=3)
    g = double(gate)
    expected = g / (1 + np.exp(-g)) * double(x)
    assert np.abs(double(swiglu(gate, x)) - expected).max() < 1e-4


@pytest.mark.parametrize("block", [1 << 19, 700])
def test_a_causal_chunk_attends_as_the_formula_says(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one block or in many, whose hidden keys are not computed at all."""
    monkeypatch.setattr(folded, "_BLOCK", block)
    queries, keys, values = random(1, 4, 9, 8, seed=4), random(1, 2, 50, 8, seed=5), random(1, 2, 50, 8, seed=6)
    mask = causal_mask(9, 50)
    bias = mx.where(mx.array(mask), mx.array(0.0), mx.array(-np.inf))
    got = attend_folded(queries, (keys, values), bias, scale=0.4, causal=True)
    assert np.abs(double(got) - plainly(queries, keys, values, mask, 0.4)).max() < 1e-5


@pytest.mark.parametrize("block", [1 << 19, 500])
def test_a_prefix_read_once_gives_what_each_row_would_get_alone(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two parts of a row merge into one softmax, whatever their scores."""
    monkeypatch.setattr(folded, "_BLOCK", block)
    rows, shared, own = 5, 60, 3
    queries = random(rows, 6, 1, 8, seed=7) * 5
    prefix = (random(1, 2, shared, 8, seed=8), random(1, 2, shared, 8, seed=9))
    mine = (random(rows, 2, own, 8, seed=10) * 3, random(rows, 2, own, 8, seed=11))
    seen = np.arange(own)[None] < np.array([3, 1, 2, 3, 1])[:, None]
    bias = mx.where(mx.array(seen), mx.array(0.0), mx.array(-np.inf))[:, None, None]
    got = cascade(queries, prefix, mine, bias, scale=0.7)
    both = [mx.concatenate([mx.repeat(a, rows, axis=0), b], axis=2) for a, b in zip(prefix, mine, strict=True)]
    mask = np.concatenate([np.ones((rows, shared), bool), seen], axis=1)[:, None, None]
    assert np.abs(double(got) - plainly(queries, both[0], both[1], mask, 0.7)).max() < 1e-5


def test_sinks_take_their_share() -> None:
    """A sink is one more key whose value is zero."""
    queries, keys, values = random(1, 2, 3, 8, seed=12), random(1, 2, 10, 8, seed=13), random(1, 2, 10, 8, seed=14)
    sinks = mx.array([0.5, 3.0])
    got = attend_folded(queries, (keys, values), None, scale=0.4, sinks=sinks)
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.4, sinks=sinks)
    assert np.abs(double(got) - double(expected)).max() < 1e-5
