"""Drawing tokens equals a plain reference that sorts the whole vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_mlx.backend.base import WantToken
from pie_mlx.backend.mlx.sampling import Draw, draw_tokens
from pie_mlx.sampling import Sampling

Floats = npt.NDArray[np.float32]
EDGE = 1e-5
"""A draw or a filter that is decided by less than this is a tie of rounding."""


def _lse(logits: Floats) -> Floats:
    """Return each row's log-normaliser as the device gives it."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    normal: Floats = (top + np.log(np.exp(wide - top[:, None]).sum(axis=1))).astype(np.float32)
    return normal


def _sorted(logits: Floats) -> npt.NDArray[np.int64]:
    """Return all ids by (logit descending, id ascending)."""
    order: npt.NDArray[np.int64] = np.lexsort((np.arange(len(logits)), -logits))
    return order


def _kept_by_reference(logits: Floats, sampling: Sampling, top_p_shift: float = 0.0) -> npt.NDArray[np.int64]:
    """Apply top-p, min-p, top-k to the untempered distribution of one row, as mlx-lm does."""
    wide = logits.astype(np.float64)
    probs = np.exp(wide - wide.max())
    probs /= probs.sum()
    order = _sorted(logits)
    keep = np.ones(len(logits), dtype=bool)
    if sampling.top_p < 1:
        above = np.concatenate([[0.0], np.cumsum(probs[order])[:-1]])
        threshold = logits[order[np.flatnonzero(above < sampling.top_p + top_p_shift)[-1]]]
        keep &= logits >= threshold
    if sampling.min_p > 0:
        keep &= probs >= probs.max() * sampling.min_p
    kept = order[keep[order]]
    return kept[: sampling.top_k] if sampling.top_k else kept


def _draw_by_reference(logits: Floats, sampling: Sampling, uniform: float) -> set[int]:
    """Return the token that the reference draws, or both of two that rounding decides between."""
    found = set()
    for shift in (-EDGE, EDGE):
        kept = _kept_by_reference(logits, sampling, shift)
        scaled = (logits[kept].astype(np.float64) - logits.max()) / sampling.temperature
        weights = np.cumsum(np.exp(scaled))
        for nudge in (-EDGE, 0, EDGE):
            at = int((weights <= (uniform + nudge) * weights[-1]).sum())
            found.add(int(kept[min(at, len(kept) - 1)]))
    return found


def _one(logits: Floats, want: WantToken) -> Draw:
    """Draw from a single row."""
    (draw,) = draw_tokens(logits[None], _lse(logits[None]), [want])
    assert draw is not None
    return draw


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 300, 10**6]),
    min_p=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    num_logprobs=st.integers(0, 5),
)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([5, 97, 1000]),
    spread=st.sampled_from([0.1, 1.0, 3.0, 8.0]),
    wants=st.lists(st.tuples(samplings, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=5),
)
def test_draws_equal_the_reference(seed: int, vocab: int, spread: float, wants: list[tuple[Sampling, float]]) -> None:
    """Rows with parameters of their own draw what a full sort draws, with the true log-probabilities."""
    rng = np.random.default_rng(seed)
    logits = (np.round(rng.normal(size=(len(wants), vocab)) * 8) / 8 * spread).astype(np.float32)
    lse = _lse(logits)
    draws = draw_tokens(logits, lse, [WantToken(sampling, uniform) for sampling, uniform in wants])
    for row, (draw, (sampling, uniform)) in enumerate(zip(draws, wants, strict=True)):
        assert draw is not None
        assert draw.token in _draw_by_reference(logits[row], sampling, uniform)
        assert draw.logprob == pytest.approx(float(logits[row, draw.token]) - float(lse[row]), abs=1e-6)
        best = _sorted(logits[row])[: sampling.num_logprobs]
        assert [token for token, _ in draw.top] == best.tolist()


@pytest.mark.parametrize("vocab", [40_000, 70_000])
@pytest.mark.parametrize("spread", [0.5, 4.0])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, min_p=0.05),
        Sampling(temperature=1.0, min_p=0.5),
        Sampling(temperature=0.7, top_p=0.95),
        Sampling(temperature=0.7, top_k=50),
        Sampling(temperature=1.3),
    ],
)
def test_large_vocabularies_are_filtered_like_small_ones(vocab: int, spread: float, sampling: Sampling) -> None:
    """Every draw lies in the reference's kept set, and the draws at both ends are its first and last tokens."""
    logits = (np.random.default_rng(1).normal(size=vocab) * spread).astype(np.float32)
    kept = _kept_by_reference(logits, sampling)
    uniforms = [0.0, 0.25, 0.5, 0.75, 0.999]
    rows = np.repeat(logits[None], len(uniforms), axis=0)
    draws = draw_tokens(rows, _lse(rows), [WantToken(sampling, uniform) for uniform in uniforms])
    tokens = [draw.token for draw in draws if draw is not None]
    assert tokens[0] == kept[0]
    assert set(tokens) <= set(kept.tolist())
    for token, uniform in zip(tokens, uniforms, strict=True):
        assert token in _draw_by_reference(logits, sampling, uniform)


@given(seed=st.integers(0, 2**32 - 1), uniform=st.floats(0, 1, exclude_max=True))
def test_a_row_draws_the_same_in_any_batch(seed: int, uniform: float) -> None:
    """A row's draw does not depend on its neighbours, nor on where it stands."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(4, 500)) * 3).astype(np.float32)
    want = WantToken(Sampling(temperature=0.9, top_p=0.9), uniform)
    others = [WantToken(Sampling(temperature=t, top_k=k), 0.4) for t, k in ((1.0, 0), (2.0, 3), (0.0, 0))]
    alone = _one(logits[0], want)
    for place in range(4):
        rows = np.insert(logits[1:], place, logits[0], axis=0)
        wants = [*others[:place], want, *others[place:]]
        assert draw_tokens(rows, _lse(rows), wants)[place] == alone


def test_frequencies_follow_the_tempered_distribution() -> None:
    """Evenly spread uniform numbers give each token its tempered share."""
    logits = np.array([2.0, 1.0, 0.0, -1.0], dtype=np.float32)
    count, temperature = 400, 0.5
    rows = np.repeat(logits[None], count, axis=0)
    wants = [WantToken(Sampling(temperature=temperature), (i + 0.5) / count) for i in range(count)]
    drawn = np.bincount([draw.token for draw in draw_tokens(rows, _lse(rows), wants) if draw], minlength=4)
    expected = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    np.testing.assert_allclose(drawn / count, expected, atol=1.01 / count)


@given(
    seed=st.integers(0, 2**32 - 1),
    uniform=st.floats(0, 1, exclude_max=True),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_only_allowed_tokens_are_drawn(seed: int, uniform: float, temperature: float) -> None:
    """A restricted row draws from its renormalised choice; its log-probability stays that of the vocabulary."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=300) * 4).astype(np.float32)
    allowed = rng.choice(300, size=7, replace=False).astype(np.int32)
    draw = _one(logits, WantToken(Sampling(temperature=temperature, num_logprobs=3), uniform, allowed))
    assert draw.token in allowed
    if temperature == 0:
        assert draw.token == allowed[np.argmax(logits[allowed])]
    assert draw.logprob == pytest.approx(float(logits[draw.token]) - float(_lse(logits[None])[0]), abs=1e-6)
    assert [token for token, _ in draw.top] == _sorted(logits)[:3].tolist()


def test_tokens_of_probability_zero_are_neither_drawn_nor_reported() -> None:
    """Where only two logits are finite, only those tokens appear, however many alternatives are asked for."""
    logits = np.full(50, -np.inf, dtype=np.float32)
    logits[[7, 31]] = [1.0, 0.5]
    draw = _one(logits, WantToken(Sampling(temperature=1.0, num_logprobs=5), 0.99))
    assert draw.token == 31
    assert [token for token, _ in draw.top] == [7, 31]


def test_a_choice_among_impossible_tokens_has_no_draw() -> None:
    """All allowed tokens have probability 0: there is nothing to draw."""
    logits = np.array([[0.0, -np.inf, -np.inf]], dtype=np.float32)
    want = WantToken(Sampling(temperature=1.0), 0.5, np.array([1, 2], dtype=np.int32))
    assert draw_tokens(logits, _lse(logits), [want]) == [None]
