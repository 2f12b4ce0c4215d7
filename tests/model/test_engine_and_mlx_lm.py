"""The engine's greedy tokens are mlx-lm's, alone and in a batch; where they differ, the logits prove a tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pie_mlx.engine import Engine
from pie_mlx.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pie_mlx.backend.mlx.backend import MlxBackend

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TOKENS = 64
TIE = 1e-3
"""Logits of the two likeliest tokens closer than this are a tie: fp32 sums in another order decide it."""

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
    "Q: What is 17 + 25?\nA:",
    "SELECT name, COUNT(*) FROM orders",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics state that",
    "1, 1, 2, 3, 5, 8, 13,",
    "Ingredients:\n- 2 eggs\n- 100 g flour\n",
    "In 1969, the first humans",
    "<html>\n<head>\n<title>",
    "Le chat est assis sur",
    "Der schnellste Weg nach Berlin",
    "The opposite of hot is",
    '{"name": "Ada", "age":',
    "Photosynthesis is the process by which",
    "To be, or not to be,",
    "import numpy as np\n\n# Compute the mean of",
    "你好，",
    "The quick brown fox jumps over the lazy dog. " * 6,
)


def ids_of(engine: Engine, prompt: str) -> list[int]:
    """Encode a prompt."""
    assert isinstance(engine.codec, Tokenizer)
    return engine.codec.encode(prompt)


def mlx_lm_tokens(engine: Engine, prompt: Sequence[int]) -> list[int]:
    """Return mlx-lm's own greedy tokens on the engine's very weights, end-of-sequence ignored."""
    from mlx_lm.generate import generate_step

    def run() -> list[int]:
        import mlx.core as mx

        backend: MlxBackend = engine.backend  # type: ignore[assignment]  # this engine runs MLX
        steps = generate_step(mx.array(list(prompt)), backend.module, max_tokens=NUM_TOKENS)
        return [int(token) for token, _logprobs in steps]

    return engine.run_errand(run)


def top_two_gap(engine: Engine, sequence: Sequence[int]) -> float:
    """Return the distance of mlx-lm's two largest logits after ``sequence``."""

    def run() -> float:
        import mlx.core as mx

        backend: MlxBackend = engine.backend  # type: ignore[assignment]  # this engine runs MLX
        logits = np.array(backend.module(mx.array([list(sequence)]))[0, -1].astype(mx.float32))
        second, first = np.sort(logits)[-2:]
        return float(first - second)

    return engine.run_errand(run)


def assert_same_up_to_ties(engine: Engine, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> None:
    """Assert that the first difference, if there is one, is a tie of the logits."""
    assert len(ours) == len(theirs) == NUM_TOKENS
    for at, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        if mine != other:
            gap = top_two_gap(engine, [*prompt, *ours[:at]])
            assert gap < TIE, f"token {at}: {mine} instead of {other}, and the logits are {gap} apart"
            return


@pytest.fixture(scope="module")
def expected(_session_engine: Engine) -> list[list[int]]:
    """mlx-lm's tokens for every prompt."""
    return [mlx_lm_tokens(_session_engine, ids_of(_session_engine, prompt)) for prompt in PROMPTS]


def test_each_prompt_alone_gives_mlx_lms_tokens(starter_engine: Engine, expected: list[list[int]]) -> None:
    """Twenty prompts, one after the other."""
    for prompt, theirs in zip(PROMPTS, expected, strict=True):
        ids = ids_of(starter_engine, prompt)
        with starter_engine.context(ids) as context:
            ours = context.generate(max_tokens=NUM_TOKENS, stop_ids=()).tokens
        assert_same_up_to_ties(starter_engine, ids, ours, theirs)


def test_all_prompts_in_one_batch_give_mlx_lms_tokens(starter_engine: Engine, expected: list[list[int]]) -> None:
    """Twenty prompts of different lengths at once: the batch changes nothing."""
    prompts = [ids_of(starter_engine, prompt) for prompt in PROMPTS]
    contexts = [starter_engine.context(ids) for ids in prompts]
    requests = [context.submit(max_tokens=NUM_TOKENS, stop_ids=()) for context in contexts]
    for ids, request, theirs in zip(prompts, requests, expected, strict=True):
        assert_same_up_to_ties(starter_engine, ids, request.result().tokens, theirs)
    for context in contexts:
        context.close()
