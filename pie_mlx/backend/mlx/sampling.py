"""Choosing tokens from logits: vectorised over rows, with each row's own parameters.

Tokens of a row are ordered by logit, descending, then by id. Every filter keeps a prefix of that order: top-p
the smallest prefix whose probability reaches p (ties included), min-p those at least that fraction as likely
as the first, top-k the first k. The draw walks the kept tokens in the same order, with the weights that the
temperature gives, until ``uniform`` of their sum is passed. Only as much of the order is made as is needed:
candidates within a margin below the largest logit, and wider ones for the rows where those do not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import FloatArray, WantToken
from pie_mlx.errors import InvalidParameter

Float64Array = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]
_MARGINS = (8.0, 16.0, np.inf)
"""How far below the largest logit candidates reach: e**-8 of the likeliest, e**-16, everything."""
_LAST_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)
_ID_BITS = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn token, its log-probability, and the likeliest tokens, as many as were asked for."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows still to be drawn; all arrays have one entry a row. Greedy is top-k of one at temperature 1."""

    temperature: Float64Array
    top_p: Float64Array
    min_p: Float64Array
    top_k: IndexArray
    num_top: IndexArray
    uniform: Float64Array

    @classmethod
    def of(cls, wants: Sequence[WantToken], vocab_size: int) -> _Rows:
        """Collect the parameters; top_k of 0, or above the vocabulary, keeps all."""
        sampling = [want.sampling for want in wants]
        top_k = np.array([1 if s.is_greedy else s.top_k or vocab_size for s in sampling], dtype=np.int64)
        return cls(
            temperature=np.array([1.0 if s.is_greedy else s.temperature for s in sampling], dtype=np.float64),
            top_p=np.array([s.top_p for s in sampling], dtype=np.float64),
            min_p=np.array([s.min_p for s in sampling], dtype=np.float64),
            top_k=np.minimum(top_k, vocab_size),
            num_top=np.array([min(s.num_logprobs, vocab_size) for s in sampling], dtype=np.int64),
            uniform=np.array([want.uniform for want in wants], dtype=np.float64),
        )

    def pick(self, index: IndexArray) -> _Rows:
        """Return the parameters of some rows."""
        return _Rows(
            self.temperature[index],
            self.top_p[index],
            self.min_p[index],
            self.top_k[index],
            self.num_top[index],
            self.uniform[index],
        )


def draw_tokens(logits: FloatArray, lse: FloatArray, wants: Sequence[WantToken]) -> list[Draw | None]:
    """Draw one token a row from ``logits`` ``[rows, vocab]`` with log-normalisers ``lse`` ``[rows]``, all finite.

    Log-probabilities are those of the whole vocabulary at temperature 1; a token of probability 0 is never
    drawn nor reported. A row is None if all its allowed tokens have probability 0.
    """
    rows = _Rows.of(wants, logits.shape[1])
    draws: list[Draw | None] = [None] * len(wants)
    pending = np.array([i for i, want in enumerate(wants) if want.allowed is None], dtype=np.int64)
    for margin in _MARGINS:
        if len(pending):
            picked = logits if len(pending) == len(logits) else logits[pending]
            found = _draw_within(picked, lse[pending].astype(np.float64), rows.pick(pending), margin)
            for i, draw in zip(pending.tolist(), found, strict=True):
                draws[i] = draw
            pending = pending[[draw is None for draw in found]]
    for i, want in enumerate(wants):
        if want.allowed is not None:
            draws[i] = _draw_allowed(logits[i], float(lse[i]), rows.pick(np.array([i])), want.allowed)
    assert len(pending) == 0, "the last margin covers the whole vocabulary"
    return draws


def check_allowed(want: WantToken, vocab_size: int) -> InvalidParameter | None:
    """Return why a request's ``allowed`` ids cannot be used, None when they can."""
    if want.allowed is None:
        return None
    ids = np.asarray(want.allowed)
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        shown = ids[(ids < 0) | (ids >= vocab_size)][:5].tolist()
        return InvalidParameter("allowed", shown, f"at least one token id from 0 to {vocab_size - 1}")
    return None


@dataclass(frozen=True, slots=True)
class _Order:
    """Candidates of some rows in order, padded on the right: all ``[rows, width]``."""

    ids: IndexArray
    logits: Float64Array
    """-inf where padded."""
    counts: IndexArray
    """Candidates of each row, ``[rows]``."""


def _draw_within(logits: FloatArray, norm: Float64Array, rows: _Rows, margin: float) -> list[Draw | None]:
    """Draw the rows whose candidates within ``margin`` decide; None for rows that need more."""
    order = _candidates(logits, margin)
    kept, known = _kept(order, norm, rows, margin)
    unfiltered = (rows.top_p >= 1) & (rows.min_p <= 0) & (rows.top_k >= logits.shape[1])
    total = None
    if bool((unfiltered & ~known).any()):
        total = _tempered_mass(logits, order.logits[:, 0], rows.temperature)
    at, decided = _walk(order, kept, known, rows, total)
    decided &= known | unfiltered
    decided &= (order.counts >= rows.num_top) | np.isinf(margin)
    return [
        _read_draw(order, i, int(at[i]), float(norm[i]), int(rows.num_top[i])) if decided[i] else None
        for i in range(len(logits))
    ]


def _read_draw(order: _Order, row: int, at: int, norm: float, num_top: int) -> Draw:
    """Read one row's draw off the order."""
    num = min(num_top, int(order.counts[row]))
    ids, values = order.ids[row, :num].tolist(), (order.logits[row, :num] - norm).tolist()
    return Draw(int(order.ids[row, at]), float(order.logits[row, at] - norm), tuple(zip(ids, values, strict=True)))


def _candidates(logits: FloatArray, margin: float) -> _Order:
    """Collect and order the tokens less than ``margin`` below each row's largest logit."""
    floor = logits.max(axis=1, keepdims=True) - np.float32(margin)
    row, ids = np.nonzero((logits >= floor) & (logits > -np.inf))
    counts = np.bincount(row, minlength=len(logits))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    keys = np.full((len(logits), int(counts.max())), _LAST_KEY)
    keys[row, np.arange(len(row)) - starts[row]] = _sort_keys(logits[row, ids], ids)
    keys.sort(axis=1)
    named = np.where(keys == _LAST_KEY, 0, keys & _ID_BITS).astype(np.int64)
    values = np.where(keys == _LAST_KEY, -np.inf, np.take_along_axis(logits, named, axis=1)).astype(np.float64)
    return _Order(named, values, counts)


def _sort_keys(values: FloatArray, ids: IndexArray) -> npt.NDArray[np.uint64]:
    """Return integers that ascend as the values descend, and with the ids where values are equal.

    One sort of integers is many times faster than sorting by two keys. A float's bits order like the float once
    the negative ones are flipped; adding zero makes -0.0 equal to 0.0.
    """
    bits = (values + np.float32(0)).view(np.uint32)
    descending = np.where(bits >> 31 == 1, bits, ~bits & np.uint32(0x7FFFFFFF))
    return (descending.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)


def _kept(order: _Order, norm: Float64Array, rows: _Rows, margin: float) -> tuple[IndexArray, npt.NDArray[np.bool_]]:
    """Return how many candidates each row's filters keep, and whether that is certain."""
    complete = bool(np.isinf(margin))
    mass = np.cumsum(np.exp(order.logits - norm[:, None]), axis=1)
    by_mass, mass_known = _top_p(order, mass, rows, complete=complete)
    ratio = np.exp(order.logits - order.logits[:, :1])
    likely = (ratio >= rows.min_p[:, None] * (1 - 1e-12)).sum(axis=1)
    by_min = np.where(rows.min_p > 0, np.minimum(likely, order.counts), order.counts)
    min_known = (rows.min_p > 0) & (rows.min_p > np.exp(-margin))
    kept = np.minimum(np.minimum(by_mass, by_min), np.minimum(rows.top_k, order.counts))
    known = mass_known | min_known | (rows.top_k <= order.counts) | complete
    return np.maximum(kept, 1), known


def _top_p(
    order: _Order, mass: Float64Array, rows: _Rows, *, complete: bool
) -> tuple[IndexArray, npt.NDArray[np.bool_]]:
    """Return how many candidates reach ``top_p``, ties of the last one included, and whether that is certain."""
    reached = mass >= rows.top_p[:, None]
    last = np.where(reached.any(axis=1), reached.argmax(axis=1), order.counts - 1)
    value = np.take_along_axis(order.logits, last[:, None], axis=1)
    tied = np.minimum((order.logits >= value).sum(axis=1), order.counts)
    filtered = rows.top_p < 1
    certain = filtered & reached.any(axis=1) & ((tied < order.counts) | complete)
    return np.where(filtered, tied, order.counts), certain


def _tempered_mass(logits: FloatArray, largest: Float64Array, temperature: Float64Array) -> Float64Array:
    """Return each row's sum of ``exp((logit - largest) / temperature)`` over the whole vocabulary."""
    scaled = (logits - largest[:, None].astype(np.float32)) / temperature[:, None].astype(np.float32)
    mass: Float64Array = np.exp(scaled, dtype=np.float32).sum(axis=1, dtype=np.float64)
    return mass


def _walk(
    order: _Order,
    kept: IndexArray,
    known: npt.NDArray[np.bool_],
    rows: _Rows,
    total: Float64Array | None,
) -> tuple[IndexArray, npt.NDArray[np.bool_]]:
    """Return where each row's draw ends, and whether it ends among the candidates.

    Where the kept set is not known, ``total`` is the mass of the whole vocabulary: right if no filter is set.
    """
    scaled = (order.logits - order.logits[:, :1]) / rows.temperature[:, None]
    weights = np.where(np.arange(order.logits.shape[1])[None] < kept[:, None], np.exp(scaled), 0.0)
    summed = np.cumsum(weights, axis=1)
    sums = np.take_along_axis(summed, (kept - 1)[:, None], axis=1)[:, 0]
    whole = sums if total is None else np.where(known, sums, total)
    target = rows.uniform * whole
    at = (summed <= target[:, None]).sum(axis=1)
    return np.minimum(at, kept - 1), known | (at < kept)


def _draw_allowed(logits: FloatArray, lse: float, row: _Rows, allowed: npt.NDArray[np.int32]) -> Draw | None:
    """Draw from the allowed ids alone, renormalised before the filters; None if all have probability 0."""
    ids = np.unique(allowed).astype(np.int64)
    values = logits[ids]
    seen = values > -np.inf
    if not seen.any():
        return None
    ids, exact = ids[seen], values[seen].astype(np.float64)
    best = np.lexsort((ids, -exact))
    order = _Order(ids[best][None], exact[best][None], np.array([len(ids)]))
    norm = np.array([exact.max() + np.log(np.exp(exact - exact.max()).sum())])
    kept, known = _kept(order, norm, row, np.inf)
    at = int(_walk(order, kept, known, row, None)[0][0])
    token = int(order.ids[0, at])
    top = _top_of(logits, lse, int(row.num_top[0]))
    return Draw(token, float(logits[token]) - lse, top)


def _top_of(logits: FloatArray, lse: float, num: int) -> tuple[tuple[int, float], ...]:
    """Return a row's likeliest tokens with their log-probabilities, ties by id."""
    if num == 0:
        return ()
    floor = np.partition(logits, len(logits) - num)[len(logits) - num]
    ids = np.flatnonzero((logits >= floor) & (logits > -np.inf))
    best = ids[np.lexsort((ids, -logits[ids]))][:num]
    return tuple((int(i), float(logits[i]) - lse) for i in best)
