"""The baseline: mlx-lm's own loops on the very weights that the engine uses.

Every function here runs on the engine's thread (``Engine.run_errand``): the weights belong to its stream.
Times are taken around evaluated results, never around lazy graphs. End-of-sequence tokens are ignored.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

Cache = list[Any]
"""One of mlx-lm's prompt caches: a cache object a layer."""

PREFILL_CHUNK = 2048
"""mlx-lm's own ``prefill_step_size``."""

_PROBE_WIDTH = 8192
_PROBE_REPEATS = 12


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decode run gave: tokens by row, seconds after the first tokens, KV bytes at the end."""

    tokens: tuple[tuple[int, ...], ...]
    decode_s: float
    kv_bytes: int
    shared_pages: int = 0
    """Pages that more than one row viewed: 0 where nothing is shared."""


@dataclass(frozen=True, slots=True)
class Written:
    """What one row of a batch gave: its tokens, the log-probabilities of ``labels``, and its cache."""

    tokens: tuple[int, ...]
    labels: tuple[float, ...]
    cache: Cache


def prefill(module: nn.Module, prompt: Sequence[int], chunk: int = PREFILL_CHUNK) -> tuple[Cache, float]:
    """Compute the K/V of ``prompt`` into a fresh cache, as ``generate_step`` does; return it and the seconds."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(module)
    started = time.perf_counter()
    for at in range(0, len(prompt), chunk):
        module(mx.array(list(prompt[at : at + chunk]))[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        mx.clear_cache()
    return cache, time.perf_counter() - started


def decode_one(module: nn.Module, cache: Cache, first: int, num_tokens: int) -> Decoded:
    """Decode greedily with mlx-lm's own single-stream loop; the cache is copied first."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    own = copy.deepcopy(cache)
    tokens: list[int] = []
    started = 0.0
    for token, _logprobs in generate_step(mx.array([first]), module, max_tokens=num_tokens, prompt_cache=own):
        tokens.append(int(token))
        if len(tokens) == 1:
            started = time.perf_counter()
    return Decoded((tuple(tokens),), time.perf_counter() - started, cache_bytes(own))


def first_token_s(module: nn.Module, cache: Cache | None, prompt: Sequence[int]) -> float:
    """Return the seconds to the first token behind ``prompt``, after what ``cache`` holds (None: nothing)."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    own = None if cache is None else copy.deepcopy(cache)
    started = time.perf_counter()
    int(next(generate_step(mx.array(list(prompt)), module, max_tokens=1, prompt_cache=own))[0])
    return time.perf_counter() - started


def decode_batch(module: nn.Module, caches: Sequence[Cache], firsts: Sequence[int], num_tokens: int) -> Decoded:
    """Decode greedily with mlx-lm's BatchGenerator over copied prompt caches."""
    from mlx_lm.generate import BatchGenerator

    rows = len(firsts)
    generator = BatchGenerator(module, max_tokens=num_tokens, completion_batch_size=rows, prefill_batch_size=rows)
    try:
        uids = generator.insert([[first] for first in firsts], caches=[copy.deepcopy(cache) for cache in caches])
        tokens: dict[int, list[int]] = {uid: [] for uid in uids}
        started, kv_bytes, first_lengths = 0.0, 0, 0
        while responses := generator.next_generated():
            for response in responses:
                tokens[response.uid].append(int(response.token))
            if not started and all(tokens.values()):
                started = time.perf_counter()
                first_lengths = sum(map(len, tokens.values()))
            kv_bytes = max(kv_bytes, generator.prompt_cache_nbytes)
        ended = time.perf_counter()
        assert sum(map(len, tokens.values())) == rows * num_tokens, "every row decodes its full length"
        assert first_lengths == rows, "the clock starts when every row has one token"
    finally:
        generator.close()
    return Decoded(tuple(tuple(tokens[uid]) for uid in uids), ended - started, kv_bytes)


def write_prompts(
    module: nn.Module, prompts: Sequence[Sequence[int]], num_tokens: int, temperature: float
) -> list[tuple[int, ...]]:
    """Continue each prompt with mlx-lm's ``batch_generate``: nothing is kept from one call to the next."""
    from mlx_lm.generate import batch_generate
    from mlx_lm.sample_utils import make_sampler

    response = batch_generate(
        module,
        _NoText(),
        [list(prompt) for prompt in prompts],
        max_tokens=num_tokens,
        return_token_ids=True,
        sampler=make_sampler(temp=temperature),
    )
    assert response.token_ids is not None, "token ids were asked for"
    return [tuple(ids) for ids in response.token_ids]


class _NoText:
    """All that ``batch_generate`` asks of a tokenizer; nothing ends a sequence, and no text is wanted."""

    eos_token_ids: tuple[int, ...] = ()

    def decode(self, ids: Sequence[int]) -> str:
        """Return no text."""
        return ""


class CopyBatch:
    """Mlx-lm's BatchGenerator over copies of kept prompt caches; knows the K/V bytes it held at most."""

    def __init__(self, module: nn.Module, temperature: float) -> None:
        """Sample at ``temperature``."""
        from mlx_lm.sample_utils import make_sampler

        self._module = module
        self._sampler = make_sampler(temp=temperature)
        self.peak_bytes = 0
        """Of the generator's own batches; kept caches are their owner's."""

    def write(
        self, caches: Sequence[Cache], prompts: Sequence[Sequence[int]], num_tokens: int, labels: Sequence[int] = ()
    ) -> list[Written]:
        """Feed each prompt behind a copy of its cache and decode ``num_tokens``; read ``labels`` of the first."""
        import mlx.core as mx
        from mlx_lm.generate import BatchGenerator

        rows = len(prompts)
        generator = BatchGenerator(
            self._module,
            max_tokens=num_tokens,
            sampler=self._sampler,
            completion_batch_size=rows,
            prefill_batch_size=rows,
        )
        wanted = mx.array(list(labels), dtype=mx.int32)
        tokens: dict[int, list[int]] = {}
        probs: dict[int, tuple[float, ...]] = {}
        done: dict[int, Cache] = {}
        try:
            uids = generator.insert(
                [list(prompt) for prompt in prompts], caches=[copy.deepcopy(cache) for cache in caches]
            )
            while responses := generator.next_generated():
                self.peak_bytes = max(self.peak_bytes, generator.prompt_cache_nbytes)
                for response in responses:
                    if labels and response.uid not in probs:
                        probs[response.uid] = _floats(mx.exp(response.logprobs[wanted]))
                    tokens.setdefault(response.uid, []).append(int(response.token))
                    if response.finish_reason is not None:
                        done[response.uid] = response.prompt_cache
        finally:
            generator.close()
        return [Written(tuple(tokens[uid]), probs.get(uid, ()), done[uid]) for uid in uids]


def label_probs(module: nn.Module, tokens: Sequence[int], labels: Sequence[int]) -> tuple[float, ...]:
    """Return the probabilities of ``labels`` behind ``tokens``, in one plain forward pass."""
    import mlx.core as mx

    logits = module(mx.array(list(tokens))[None])[0, -1].astype(mx.float32)
    probs = mx.softmax(logits)[mx.array(list(labels), dtype=mx.int32)]
    return _floats(probs)


def _floats(array: mx.array) -> tuple[float, ...]:
    """Return a vector's values."""
    return tuple(float(array[at]) for at in range(len(array)))


def seed(value: int) -> None:
    """Seed the generator that mlx-lm's samplers draw from."""
    import mlx.core as mx

    mx.random.seed(value)


def branch_copy(cache: Cache) -> float:
    """Return the seconds to make a branch that can be written: a deep copy, and the first write, which copies."""
    import mlx.core as mx

    started = time.perf_counter()
    own = copy.deepcopy(cache)
    for layer in own:
        keys, values = layer.state[:2]
        layer.update_and_fetch(keys[..., :1, :], values[..., :1, :])
    mx.eval([layer.state for layer in own])
    return time.perf_counter() - started


def cache_bytes(cache: Cache) -> int:
    """Return the bytes that a prompt cache holds."""
    return sum(int(layer.nbytes) for layer in cache)


def reset_memory() -> None:
    """Return freed buffers and start a new peak."""
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()


def step_bytes(module: nn.Module) -> int:
    """Return the bytes of weights that a decode step reads: all but an input embedding that is not tied."""
    from mlx.utils import tree_flatten

    arrays: list[tuple[str, mx.array]] = tree_flatten(module.parameters())  # type: ignore[assignment]
    is_tied = not any(name.startswith("lm_head") or ".lm_head" in name for name, _ in arrays)
    return sum(array.nbytes for name, array in arrays if is_tied or "embed_tokens" not in name)


def read_bandwidth() -> float:
    """Measure how many bytes a second the device reads: the best of some products of a large matrix with a vector."""
    import mlx.core as mx

    matrix = mx.ones((_PROBE_WIDTH, _PROBE_WIDTH // 2))
    vector = mx.ones((_PROBE_WIDTH // 2, 1))
    mx.eval(matrix, vector)
    best = 0.0
    for _ in range(_PROBE_REPEATS):
        started = time.perf_counter()
        mx.eval(matrix @ vector)
        best = max(best, matrix.nbytes / (time.perf_counter() - started))
    del matrix
    mx.clear_cache()
    return best
