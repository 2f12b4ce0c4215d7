"""Searches on the real starter model: run after run on one engine, in pools of every size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import PressureError
from pie_mlx.open import open_folder
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import FinishReason

pytestmark = pytest.mark.model

QUESTION = "Why is the sky blue?"
PARAMS = SearchParams(breadth=4, beam=2, depth=3, max_tokens=16, answer_tokens=16)


@pytest.fixture(scope="module")
def engine(starter: Path) -> Iterator[Engine]:
    """Start the starter model over 64 pages of 32 tokens."""
    with open_folder(starter, EngineSettings(pool_pages=64, page_size=32)) as engine:
        yield engine


def test_three_runs_one_after_another_all_finish(engine: Engine) -> None:
    """Each of three runs selects a node, and finds and leaves the same number of free pages."""
    for seed in range(3):
        result = Run(engine, Free(QUESTION), replace(PARAMS, seed=seed)).result(300)
        assert result.finish_reason is FinishReason.ANSWER
        assert result.node is not None
        assert result.answer
        assert result.pages.free_before == result.pages.free_after == 64
    engine.check()


def test_a_pool_for_fewer_branches_finishes_too(starter: Path) -> None:
    """With pages for a few branches only, the run is narrower and ends with an answer."""
    with open_folder(starter, EngineSettings(pool_pages=14, page_size=32)) as engine:
        result = Run(engine, Free(QUESTION), PARAMS).result(300)
        assert result.finish_reason is FinishReason.ANSWER
        assert result.pages.free_after == 14
        assert result.notices


def test_a_pool_below_one_path_is_a_typed_error(starter: Path) -> None:
    """Too small for any path: exit code 4, and the engine still serves a request."""
    with open_folder(starter, EngineSettings(pool_pages=2, page_size=32)) as engine:
        result = Run(engine, Free(QUESTION), PARAMS).result(300)
        assert isinstance(result.error, PressureError)
        assert result.exit_code == 4
        with engine.context([1, 2, 3]) as context:
            assert context.generate(max_tokens=2, stop_ids=()).completion_tokens == 2


def test_the_judge_reads_words_that_the_tokenizer_tells_apart(engine: Engine) -> None:
    """Label scores of the starter model have values, with their mass told."""
    result = Run(engine, Free(QUESTION), replace(PARAMS, depth=1)).result(300)
    scored = [node for node in result.nodes if node.score is not None]
    assert scored
    assert all(0.0 <= (node.score or 0.0) <= 1.0 for node in scored)
