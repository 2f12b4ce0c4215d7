"""The baseline: mlx-lm's own loops on the very weights that the engine uses.

Every function here runs on the engine's thread (``Engine.run_errand``): the weights belong to its stream.
Times are taken around evaluated results, never around lazy graphs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mlx.nn as nn

Cache = list[Any]
"""One of mlx-lm's prompt caches: a cache object a layer."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a decode run gave: tokens by row, seconds after the first tokens, KV bytes at the end."""

    tokens: tuple[tuple[int, ...], ...]
    decode_s: float
    kv_bytes: int


def prefill(module: nn.Module, prompt: Sequence[int], chunk: int) -> tuple[Cache, float]:
    """Compute the K/V of ``prompt`` into a fresh cache; return it and the seconds."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache = make_prompt_cache(module)
    started = time.perf_counter()
    for at in range(0, len(prompt), chunk):
        module(mx.array(prompt[at : at + chunk])[None], cache=cache)
        mx.eval([layer.state for layer in cache])
    return cache, time.perf_counter() - started


def decode_one(module: nn.Module, cache: Cache, first: int, num_tokens: int) -> Decoded:
    """Decode greedily with mlx-lm's own single-stream loop, end-of-sequence ignored; the cache is copied first."""
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


def decode_batch(module: nn.Module, caches: Sequence[Cache], firsts: Sequence[int], num_tokens: int) -> Decoded:
    """Decode greedily with mlx-lm's BatchGenerator over copied prompt caches, end-of-sequence ignored."""
    from mlx_lm.generate import BatchGenerator

    rows = len(firsts)
    generator = BatchGenerator(
        module, max_tokens=num_tokens, stop_tokens=None, completion_batch_size=rows, prefill_batch_size=rows
    )
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


def cache_bytes(cache: Cache) -> int:
    """Return the bytes that a prompt cache holds."""
    return sum(int(layer.nbytes) for layer in cache)
