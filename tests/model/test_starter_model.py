"""The starter model through our backend says what mlx-lm says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pie_mlx.backend.base import Sampled, Segment, WantToken
from pie_mlx.ids import ContextId
from pie_mlx.platform import prepare
from pie_mlx.sampling import Sampling

pytestmark = pytest.mark.model

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived",
)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def backend(starter: Path) -> Iterator[object]:
    """Load the starter model once."""
    prepare()
    from pie_mlx.backend.mlx.backend import MlxBackend

    loaded = MlxBackend.load(starter)
    loaded.allocate(20, 16)
    yield loaded
    loaded.close()


def _theirs(starter: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return mlx-lm's greedy tokens for each prompt, on weights in the same precision."""
    from mlx_lm import stream_generate
    from mlx_lm.tokenizer_utils import load as load_tokenizer

    from pie_mlx.models.load import load_model

    loaded = load_model(starter, dequantize=True)
    tokenizer = load_tokenizer(starter)
    tokenizer.eos_token_ids = set()
    return [
        [response.token for response in stream_generate(loaded.module, tokenizer, prompt, max_tokens=NUM_TOKENS)]
        for prompt in prompts
    ]


def test_greedy_tokens_equal_mlx_lm(starter: Path, backend: object) -> None:
    """Three prompts, decoded in one batch, give mlx-lm's tokens: 24 each."""
    from pie_mlx.backend.mlx.backend import MlxBackend
    from pie_mlx.models.tokenizer import Tokenizer

    assert isinstance(backend, MlxBackend)
    if backend.facts.dtype != "float32":
        pytest.skip("near-ties are decided by rounding in half precision")
    tokenizer = Tokenizer.from_folder(starter)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    slots = [list(range(16 + 64 * at, 16 + 64 * at + 64)) for at in range(len(prompts))]
    pending, got = [list(prompt) for prompt in prompts], [list[int]() for _ in prompts]
    done = [0] * len(prompts)
    for _ in range(NUM_TOKENS):
        segments = []
        for at, tokens in enumerate(pending):
            own = np.array(slots[at], dtype=np.int32)
            end = done[at] + len(tokens)
            ids = np.array(tokens, dtype=np.int32)
            want = WantToken(Sampling(), 0.0)
            segments.append(Segment(ContextId(at), ids, done[at], own[: done[at]], own[done[at] : end], want))
            done[at] = end
        for at, outcome in enumerate(backend.step(segments)):
            assert isinstance(outcome, Sampled)
            got[at].append(outcome.token)
            pending[at] = [outcome.token]
    assert got == _theirs(starter, prompts)
