"""The logits over paged K/V are those of mlx-lm's own caches, however the step is laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pie_mlx.backend.base import Logprobs, WantLogprobs
from pie_mlx.backend.mlx.backend import BackendOptions
from pie_mlx.backend.mlx.cache import Form
from pie_mlx.backend.mlx.calls import Kind
from pie_mlx.backend.mlx.parity import reference_logits
from pie_mlx.backend.mlx.planner import Grouping

VOCAB = 211
TOLERANCE = 2e-4
Floats = npt.NDArray[np.float64]


def _tokens(count: int, salt: int = 0) -> list[int]:
    """Return ``count`` different-looking token ids."""
    return [(5 + 13 * i + 29 * salt + i * i) % VOCAB for i in range(count)]


_KNOWN: dict[tuple[str, tuple[int, ...]], Floats] = {}


def _expected(driver: Any, tokens: list[int]) -> Floats:
    """Return mlx-lm's log-probabilities after ``tokens``, the last three fed one by one."""
    key = (driver.backend.facts.model, tuple(tokens))
    if key not in _KNOWN:
        logits = reference_logits(driver.module, tokens, last=min(3, len(tokens))).astype(np.float64)
        shifted = logits - logits.max()
        _KNOWN[key] = shifted - np.log(np.exp(shifted).sum())
    return _KNOWN[key]


def _assert_close(outcome: object, expected: Floats, targets: npt.NDArray[np.int32]) -> None:
    """Assert that an outcome's log-probability of the last target is mlx-lm's."""
    assert isinstance(outcome, Logprobs)
    wanted = expected[targets[-1]]
    assert abs(outcome.logprobs[-1] - wanted) <= TOLERANCE * np.abs(expected).max()


def _want(target: int) -> WantLogprobs:
    """Ask for the log-probability of one id."""
    return WantLogprobs(np.array([target], dtype=np.int32))


def _step_all(driver: Any, pairs: list[tuple[Any, list[int]]]) -> None:
    """Run the pairs' tokens in one step and compare several log-probabilities of each with the reference."""
    target = 17
    segments = [sequence.segment(tokens, _want(target)) for sequence, tokens in pairs]
    outcomes = driver.backend.step(segments)
    assert len(outcomes) == len(pairs)
    for (sequence, _), outcome in zip(pairs, outcomes, strict=True):
        _assert_close(outcome, _expected(driver, sequence.tokens), np.array([target]))


@pytest.mark.parametrize("shuffled", [False, True])
def test_prefill_in_odd_chunks_equals_one_prefill(
    make_driver: Callable[..., Any], new_sequence: Callable[..., Any], kind: str, shuffled: bool
) -> None:
    """Chunks of 1, 7, 16, 17 and 3 tokens, past every sliding window, give mlx-lm's logits at each end."""
    driver = make_driver(kind, shuffled=shuffled)
    sequence = new_sequence(driver, 1)
    tokens = _tokens(44)
    for size in (1, 7, 16, 17, 3):
        _step_all(driver, [(sequence, tokens[len(sequence.tokens) : len(sequence.tokens) + size])])


@pytest.mark.parametrize("shuffled", [False, True])
def test_ragged_batch_equals_single(
    make_driver: Callable[..., Any], new_sequence: Callable[..., Any], kind: str, shuffled: bool
) -> None:
    """Five unrelated contexts of different lengths decode in one step as each would alone."""
    driver = make_driver(kind, shuffled=shuffled)
    sequences = [new_sequence(driver, at) for at in range(5)]
    for sequence, length in zip(sequences, (1, 3, 8, 15, 23), strict=True):
        _step_all(driver, [(sequence, _tokens(length, sequence.name))])
    for token in (3, 99):
        _step_all(driver, [(sequence, [token + sequence.name]) for sequence in sequences])


@pytest.mark.parametrize("shuffled", [False, True])
def test_forks_through_shared_slots_equal_single(
    make_driver: Callable[..., Any], new_sequence: Callable[..., Any], kind: str, shuffled: bool
) -> None:
    """Forks of forks share their prefix's slots and still decode as each would alone, beside a stranger."""
    driver = make_driver(kind, shuffled=shuffled)
    root, stranger = new_sequence(driver, 1), new_sequence(driver, 2)
    _step_all(driver, [(root, _tokens(19)), (stranger, _tokens(6, 5))])
    first, second = root.fork(3), root.fork(4)
    _step_all(driver, [(first, [7]), (stranger, [9]), (second, [8])])
    third = first.fork(5)
    _step_all(driver, [(third, [1]), (first, [2]), (second, [3]), (root, [4]), (stranger, [5])])


@pytest.mark.parametrize("grouping", list(Grouping))
@pytest.mark.parametrize("view_or_gather", [None, Kind.VIEW, Kind.GATHER, Kind.CASCADE])
@pytest.mark.parametrize("model", ["llama", "gemma3", "gpt-oss"])
def test_every_path_of_the_planner_gives_the_same(
    make_driver: Callable[..., Any],
    new_sequence: Callable[..., Any],
    model: str,
    grouping: Grouping,
    view_or_gather: Kind | None,
) -> None:
    """Each grouping, with views and with gathers, serves a step of chunk, forks and strangers alike."""
    driver = make_driver(model, BackendOptions(grouping=grouping, kind=view_or_gather), shuffled=True)
    root, lonely, late = (new_sequence(driver, at) for at in (1, 2, 3))
    _step_all(driver, [(root, _tokens(11))])
    _step_all(driver, [(lonely, _tokens(4, 3))])
    fork = root.fork(4)
    _step_all(driver, [(fork, [5]), (late, _tokens(9, 8)), (root, [6]), (lonely, [7])])
    _step_all(driver, [(root, [1]), (late, [2]), (fork, [3]), (lonely, [4])])


def test_models_run_in_the_form_that_their_attention_allows(make_driver: Callable[..., Any], kind: str) -> None:
    """Attention that goes through mlx-lm's function is grouped; a model with its own gets arrays."""
    own_attention = {"gemma2": Form.ARRAYS_BY_GROUP, "deepseek": Form.ARRAYS}
    assert make_driver(kind).backend.form is own_attention.get(kind, Form.GROUPED)


@pytest.mark.parametrize("model", ["llama", "llama-sliding", "gpt-oss"])
def test_the_fused_form_of_the_gpu_gives_the_same(
    make_driver: Callable[..., Any],
    new_sequence: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
) -> None:
    """MLX's own attention with boolean masks, rows cut into runs for the vector kernel, equals mlx-lm's."""
    driver = make_driver(model)
    monkeypatch.setattr(driver.backend._forward, "folded", False)
    root, chunk, stranger = new_sequence(driver, 1), new_sequence(driver, 2), new_sequence(driver, 3)
    _step_all(driver, [(root, _tokens(9)), (stranger, _tokens(3, 4))])
    forks = [root.fork(10 + at) for at in range(11)]
    _step_all(driver, [(fork, [at]) for at, fork in enumerate(forks)])
    pairs = [(fork, [at + 50]) for at, fork in enumerate(forks)]
    _step_all(driver, [*pairs, (chunk, _tokens(20, 2)), (stranger, [8])])


def test_every_target_row_is_scored(make_driver: Callable[..., Any], new_sequence: Callable[..., Any]) -> None:
    """Log-probabilities of the last four rows are those after each of them."""
    driver = make_driver()
    sequence = new_sequence(driver, 1)
    tokens = _tokens(12)
    targets = np.array([3, 200, 0, 77], dtype=np.int32)
    (outcome,) = driver.backend.step([sequence.segment(tokens, WantLogprobs(targets))])
    assert isinstance(outcome, Logprobs)
    expected = [_expected(driver, tokens[: 9 + i])[targets[i]] for i in range(4)]
    np.testing.assert_allclose(outcome.logprobs, expected, rtol=TOLERANCE)
