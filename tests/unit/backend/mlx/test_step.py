"""A step answers every segment with exactly one outcome, and one bad row leaves the others alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import llama, mamba

from pie_mlx.backend.base import (
    LabelProbs,
    Logprobs,
    Prefilled,
    RowFailed,
    Sampled,
    Segment,
    WantLabels,
    WantLogprobs,
    WantNothing,
    WantToken,
)
from pie_mlx.backend.mlx.backend import MlxBackend, ModelIdentity
from pie_mlx.backend.mlx.parity import reference_logits
from pie_mlx.errors import DeviceFailed, InvalidLogits, InvalidParameter
from pie_mlx.ids import ContextId
from pie_mlx.sampling import Sampling

Make = Callable[..., Any]
POISON = 150
"""A token whose embedding is NaN in the poisoned model."""
GREEDY = WantToken(Sampling(), 0.0)


@pytest.fixture
def poisoned(make_driver: Make) -> Any:
    """Return a driver whose model has one token that makes everything NaN."""
    driver = make_driver("qwen3")
    weight = driver.module.model.embed_tokens.weight
    healthy = mx.array(weight)
    weight[POISON] = float("nan")
    mx.eval(weight)
    yield driver
    driver.module.model.embed_tokens.weight = healthy


def _greedy(module: nn.Module, tokens: list[int]) -> int:
    """Return mlx-lm's likeliest next token."""
    return int(np.argmax(reference_logits(module, tokens, last=1)))


def test_outcomes_answer_the_wants_in_order(make_driver: Make, new_sequence: Make) -> None:
    """One step serves a chunk, a token, labels and log-probabilities, each in the place it was asked for."""
    driver = make_driver()
    chunk, token, labels, scored = (new_sequence(driver, at) for at in range(4))
    outcomes = driver.backend.step(
        [
            chunk.segment([1, 2, 3, 4, 5]),
            token.segment([9], GREEDY),
            labels.segment([7, 8], WantLabels((30, 4, 77))),
            scored.segment([5, 6, 7], WantLogprobs(np.array([6, 7], dtype=np.int32))),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [Prefilled, Sampled, LabelProbs, Logprobs]
    logits = reference_logits(driver.module, [7, 8]).astype(np.float64)
    probs = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(outcomes[2].probs, probs[[30, 4, 77]], rtol=1e-4)
    assert outcomes[1].token == _greedy(driver.module, [9])


def test_greedy_reports_the_true_logprob(make_driver: Make, new_sequence: Make) -> None:
    """The chosen token's log-probability and the alternatives are those of the whole vocabulary."""
    driver = make_driver()
    logits = reference_logits(driver.module, [4, 90]).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    plain = new_sequence(driver, 1).segment([4, 90], GREEDY)
    more = new_sequence(driver, 2).segment([4, 90], WantToken(Sampling(num_logprobs=4), 0.0))
    first, second = driver.backend.step([plain, more])
    assert first.token == second.token == int(expected.argmax())
    assert first.logprob == pytest.approx(expected.max(), rel=1e-4)
    assert [token for token, _ in second.top] == np.argsort(-expected)[:4].tolist()
    np.testing.assert_allclose([logprob for _, logprob in second.top], np.sort(expected)[::-1][:4], rtol=1e-4)


def test_a_seeded_row_draws_the_same_alone_and_in_a_batch(make_driver: Make, new_sequence: Make) -> None:
    """The uniform number decides the draw, not the company."""
    driver = make_driver()
    want = WantToken(Sampling(temperature=1.0, top_p=0.9), 0.37)
    alone = new_sequence(driver, 1).segment([1, 2, 3], want)
    (single,) = driver.backend.step([alone])
    company = [new_sequence(driver, at).segment([at, 40 + at], GREEDY) for at in (3, 4, 5)]
    batch = driver.backend.step([*company, new_sequence(driver, 2).segment([1, 2, 3], want)])
    assert batch[-1].token == single.token


def test_nothing_uses_the_global_generator(make_driver: Make, new_sequence: Make) -> None:
    """Sampling leaves mx.random as it was, and is not moved by it."""
    driver = make_driver()
    want = WantToken(Sampling(temperature=1.5), 0.81)
    mx.random.seed(1)
    before = mx.random.uniform(shape=(3,)).tolist()
    mx.random.seed(1)
    (first,) = driver.backend.step([new_sequence(driver, 1).segment([5], want)])
    assert mx.random.uniform(shape=(3,)).tolist() == before
    (second,) = driver.backend.step([new_sequence(driver, 2).segment([5], want)])
    assert first.token == second.token


def test_top_k_above_the_vocabulary_keeps_all(make_driver: Make, new_sequence: Make) -> None:
    """A top_k larger than the vocabulary is no limit, and no error."""
    driver = make_driver()
    wants = [WantToken(Sampling(temperature=1.0, top_k=k), 0.6) for k in (0, 211, 10**9)]
    outcomes = driver.backend.step([new_sequence(driver, at).segment([8], want) for at, want in enumerate(wants)])
    assert len({outcome.token for outcome in outcomes}) == 1


def test_a_nan_row_fails_alone(poisoned: Any, new_sequence: Make) -> None:
    """A branch whose logits are NaN fails with its position; its siblings over the same prefix do not notice."""
    root = new_sequence(poisoned, 1)
    poisoned.backend.step([root.segment([1, 2, 3])])
    left, right = root.fork(2), root.fork(3)
    good, bad, also_good = poisoned.backend.step(
        [
            root.segment([4], GREEDY),
            left.segment([POISON], GREEDY),
            right.segment([6], GREEDY),
        ]
    )
    assert isinstance(bad, RowFailed)
    assert isinstance(bad.error, InvalidLogits)
    assert bad.error.position == 3
    assert good.token == _greedy(poisoned.module, [1, 2, 3, 4])
    assert also_good.token == _greedy(poisoned.module, [1, 2, 3, 6])
    outcomes = poisoned.backend.step([root.segment([5], GREEDY), right.segment([7], GREEDY)])
    assert outcomes[0].token == _greedy(poisoned.module, root.tokens)
    assert outcomes[1].token == _greedy(poisoned.module, right.tokens)


def test_a_nan_chunk_fails_at_once(poisoned: Any, new_sequence: Make) -> None:
    """A prefill chunk that wants nothing still fails when its rows are NaN, and leaves no NaN behind."""
    chunk, other = new_sequence(poisoned, 1), new_sequence(poisoned, 2)
    failed, fine = poisoned.backend.step([chunk.segment([1, POISON, 3]), other.segment([9], GREEDY)])
    assert isinstance(failed, RowFailed)
    assert isinstance(fine, Sampled)
    kept = poisoned.backend.read_slots(np.array(chunk.slots, dtype=np.int32))
    assert all(np.isfinite(array).all() for array in kept.values())


def test_impossible_ids_fail_their_own_segment(make_driver: Make, new_sequence: Make) -> None:
    """Ids outside the vocabulary, or an empty choice, never wrap around: the segment fails, the others do not."""
    driver = make_driver()
    wants = [
        WantToken(Sampling(), 0.0, np.array([211], dtype=np.int32)),
        WantToken(Sampling(), 0.0, np.array([], dtype=np.int32)),
        WantLabels((3, -1)),
        WantLogprobs(np.array([999], dtype=np.int32)),
        GREEDY,
    ]
    outcomes = driver.backend.step([new_sequence(driver, at).segment([8], want) for at, want in enumerate(wants)])
    assert all(isinstance(each, RowFailed) and isinstance(each.error, InvalidParameter) for each in outcomes[:4])
    assert isinstance(outcomes[4], Sampled)


def test_a_device_fault_is_typed_and_harmless(make_driver: Make, new_sequence: Make) -> None:
    """A fault while the pass is built raises DeviceFailed with the step, and the arena is as before."""
    driver = make_driver("qwen3")
    sequence = new_sequence(driver, 1)
    driver.backend.step([sequence.segment([1, 2, 3])])
    lost = sequence.fork(2).segment([4], GREEDY)
    layer = driver.module.model.layers[-1].mlp
    healthy, layer.gate_proj.weight = layer.gate_proj.weight, mx.zeros((3, 3))
    with pytest.raises(DeviceFailed, match="ValueError") as caught:
        driver.backend.step([lost])
    assert caught.value.step is not None
    layer.gate_proj.weight = healthy
    (outcome,) = driver.backend.step([sequence.segment([4], GREEDY)])
    assert outcome.token == _greedy(driver.module, [1, 2, 3, 4])


def test_attention_is_restored_after_a_step(make_driver: Make, new_sequence: Make) -> None:
    """The model's module has mlx-lm's own attention again, also after a failure."""
    original = sys.modules["mlx_lm.models.llama"].scaled_dot_product_attention
    driver = make_driver()
    driver.backend.step([new_sequence(driver, 1).segment([1], GREEDY)])
    assert sys.modules["mlx_lm.models.llama"].scaled_dot_product_attention is original
    assert original.__module__ == "mlx_lm.models.base"


def test_snapshots_of_slots_come_back_elsewhere(make_driver: Make, new_sequence: Make) -> None:
    """K/V read from some slots and written to others serves the same sequence."""
    driver = make_driver(shuffled=True)
    sequence = new_sequence(driver, 1)
    driver.backend.step([sequence.segment([3, 1, 4, 1, 5])])
    kept = driver.backend.read_slots(np.array(sequence.slots, dtype=np.int32))
    moved = sequence.fork(2)
    moved.slots = driver.take(5).tolist()
    driver.backend.write_slots(np.array(moved.slots, dtype=np.int32), kept)
    driver.backend.write_slots(np.array(sequence.slots, dtype=np.int32), {n: a * 0 for n, a in kept.items()})
    (outcome,) = driver.backend.step([moved.segment([9], GREEDY)])
    assert outcome.token == _greedy(driver.module, [3, 1, 4, 1, 5, 9])


def test_a_snapshot_of_another_shape_is_refused(make_driver: Make) -> None:
    """K/V that do not fit, or lack a layer, raise; nothing is written."""
    backend = make_driver().backend
    slots = np.array([20, 21], dtype=np.int32)
    kept = backend.read_slots(slots)
    with pytest.raises(DeviceFailed, match="do not fit"):
        backend.write_slots(slots, {name: array[:1] for name, array in kept.items()})
    with pytest.raises(DeviceFailed, match=r"v\.3"):
        backend.write_slots(slots, {name: array for name, array in kept.items() if name != "v.3"})


def test_a_closed_backend_holds_no_arena() -> None:
    """Closing frees the arena, and other models of the thread run on."""
    module = llama.Model(llama.ModelArgs("llama", 32, 1, 32, 2, 1e-6, 64))
    backend = MlxBackend(module, ModelIdentity("llama", "x", 64, frozenset()))
    backend.allocate(10, 16)
    assert backend.memory()["arena"] == 11 * 16 * backend.facts.kv_bytes_per_token
    backend.close()
    assert backend.memory()["arena"] == 0
    assert reference_logits(module, [1, 2]).shape == (64,)


def test_recurrent_models_carry_their_state_from_step_to_step() -> None:
    """A model whose layers keep a state instead of K/V decodes what mlx-lm decodes, chunk after chunk."""
    module = mamba.Model(
        mamba.ModelArgs(
            model_type="mamba", vocab_size=50, hidden_size=16, intermediate_size=32, state_size=4,
            num_hidden_layers=1, conv_kernel=3, use_bias=False, use_conv_bias=True, time_step_rank=2,
        )
    )  # fmt: skip
    backend = MlxBackend(module, ModelIdentity("mamba", "x", 64, frozenset()))
    assert backend.facts.has_state
    backend.allocate(4, 16)
    sequence, state = [3, 1, 4, 1, 5, 9, 2, 6], None
    done = 0
    while len(sequence) < 14:
        count = 3 if done == 0 else len(sequence) - done
        want = WantToken(Sampling(), 0.0) if done + count == len(sequence) else WantNothing()
        slots = np.arange(16, 16 + done + count, dtype=np.int32)
        tokens = np.asarray(sequence[done : done + count], dtype=np.int32)
        segment = Segment(ContextId(1), tokens, done, slots[:done], slots[done:], want, state)
        (outcome,) = backend.step([segment])
        assert not isinstance(outcome, RowFailed)
        state, done = outcome.state, done + count
        if isinstance(outcome, Sampled):
            assert outcome.token == _greedy(module, sequence)
            sequence.append(outcome.token)


class _OneOffset(llama.LlamaModel):
    """A model that takes the first row's position for all rows: fine alone, silently wrong in a ragged batch."""

    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: Any = None) -> Any:
        """Offer each layer a cache that knows one offset."""
        if cache is not None and isinstance(cache[0].offset, mx.array):
            position = cache[0].offset[0]
            cache = [_FirstOffset(each, position) for each in cache]
        return super().__call__(inputs, cache, input_embeddings)


class _FirstOffset:
    """A cache that answers with one row's offset."""

    def __init__(self, inner: Any, offset: mx.array) -> None:
        """Wrap a cache."""
        self._inner, self.offset = inner, offset

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the cache."""
        return getattr(self._inner, name)


def test_a_model_that_is_wrong_in_batches_runs_alone(make_driver: Make, new_sequence: Make) -> None:
    """The check at load finds a model that mixes up rows; it decodes one row at a time, with a notice."""
    args = llama.ModelArgs(
        model_type="llama", hidden_size=64, num_hidden_layers=2, intermediate_size=96, num_attention_heads=4,
        rms_norm_eps=1e-6, vocab_size=211,
    )  # fmt: skip
    mx.random.seed(2)
    module = llama.Model(args)
    module.model.__class__ = _OneOffset
    backend = MlxBackend(module, ModelIdentity("one-offset", "x", 64, frozenset()))
    backend.allocate(10, 16)
    assert backend.facts.max_batch_rows == 1
    assert "cannot be batched" in backend.notices[0]
    driver = make_driver()
    segments = [new_sequence(driver, at).segment(list(range(1, at + 2)), GREEDY) for at in range(3)]
    outcomes: list[Any] = backend.step(segments)
    assert [each.token for each in outcomes] == [_greedy(module, list(range(1, at + 2))) for at in range(3)]
