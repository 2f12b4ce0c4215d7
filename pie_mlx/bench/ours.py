"""Our side of a measurement, through the public API of the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from pie_mlx.bench.baseline import Decoded
from pie_mlx.engine import Completion, Context, Engine
from pie_mlx.errors import DeviceFailed

NO_STOP: frozenset[int] = frozenset()
"""End-of-sequence tokens are ignored: every trial decodes its full length."""


def decode(engine: Engine, roots: Sequence[Context], firsts: Sequence[int], num_tokens: int) -> Decoded:
    """Fork each root, put its first token behind it, and decode all forks in one batch.

    Raises:
        PieError: a request failed or fell short; a benchmark has no partial results.
    """
    with ExitStack() as stack:
        forks = [stack.enter_context(root.fork()) for root in roots]
        for fork, first in zip(forks, firsts, strict=True):
            fork.append([first])
        requests = [fork.submit(max_tokens=num_tokens, stop_ids=NO_STOP) for fork in forks]
        completions = [request.result() for request in requests]
        for completion in completions:
            if completion.completion_tokens != num_tokens or completion.ttft_s is None:
                raise DeviceFailed(f"a row gave {completion.completion_tokens} of {num_tokens} tokens")
        rows = tuple(completion.tokens for completion in completions)
        return Decoded(rows, _decode_s(engine, completions), held_bytes(engine), engine.readings().pages.shared)


def _decode_s(engine: Engine, completions: Sequence[Completion]) -> float:
    """Return the seconds of decoding behind the first tokens."""
    firsts = [completion.ttft_s or 0.0 for completion in completions]
    if engine.facts.max_batch_rows is not None:
        # A model that cannot be batched decodes one row after the other.
        return max(completion.wall_s for completion in completions) - min(firsts)
    # All rows run in one batch, so the time of any row after its first token is the batch's.
    return max(completion.wall_s - first for completion, first in zip(completions, firsts, strict=True))


def prefill(engine: Engine, prompt: Sequence[int]) -> float:
    """Compute the K/V of ``prompt`` in a context of its own; return the seconds."""
    with engine.context([*prompt, prompt[0]]) as context:
        started = time.perf_counter()
        context.prefill().result()
        return time.perf_counter() - started


def first_token_s(context: Context, prompt: Sequence[int]) -> float:
    """Return the seconds to the first token behind ``prompt`` in a fork of ``context``."""
    with context.fork() as fork:
        fork.append(prompt)
        started = time.perf_counter()
        fork.generate(max_tokens=1, stop_ids=NO_STOP)
        return time.perf_counter() - started


def held_bytes(engine: Engine) -> int:
    """Return the K/V bytes of the pages that contexts hold now."""
    pages = engine.readings().pages
    return (pages.private + pages.shared) * engine.settings.page_size * engine.facts.kv_bytes_per_token
