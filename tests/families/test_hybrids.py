"""Hybrid models, whose layers keep K/V or a recurrent state: forks are free, and no cut changes what is said."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import mlx.core as mx
import pytest

from pie_mlx.backend.mlx.backend import MlxBackend, ModelIdentity
from pie_mlx.engine import Context, Engine, EngineSettings
from pie_mlx.events import ContextRewound
from tests.families.tiny import VOCAB, tiny_model

_TEXT = [(5 + 11 * at + at * at) % VOCAB for at in range(60)]
_CHECKPOINTS = (10, 20, 30)
_STEPS = 6


@pytest.fixture(scope="module", params=["qwen3_next", "lfm2"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Return an engine over a tiny hybrid of attention and linear attention, or of attention and convolutions."""
    module, _ = tiny_model(request.param)
    identity = ModelIdentity(request.param, f"tiny-{request.param}", 512, frozenset())
    settings = EngineSettings(pool_pages=120, page_size=8, prefill_chunk=64)
    with Engine.start(lambda: MlxBackend(module, identity), settings, None) as running:
        yield running
        running.check()


def _fresh(engine: Engine, tokens: list[int]) -> tuple[int, ...]:
    """Return what a context of its own says after ``tokens``."""
    with engine.context(tokens) as context:
        return context.generate(max_tokens=_STEPS).tokens


def _active_memory() -> int:
    """Return the device's memory in use, without what nothing refers to any more."""
    gc.collect()
    return mx.get_active_memory()


def _with_checkpoints(engine: Engine) -> Context:
    """Return a context with a state kept at each checkpoint: a fork keeps one, and prefill leaves the last token."""
    context = engine.context(_TEXT[:1])
    for start, stop in zip((0, *_CHECKPOINTS), _CHECKPOINTS, strict=False):
        context.append(_TEXT[start + 1 : stop + 1])
        context.prefill().result()
        context.fork().close()
    return context


def test_fifty_forks_cost_no_page_no_state_and_no_memory(engine: Engine) -> None:
    """They view their root's pages and hold its very state; the device's memory is what it was."""
    with engine.context(_TEXT) as root:
        root.prefill().result()
        held = engine.readings().pages.held
        active = engine.run_errand(_active_memory)
        forks = [root.fork() for _ in range(50)]
        assert engine.readings().pages.held == held > 0
        assert engine.run_errand(_active_memory) <= active
        with engine.locked() as core:
            state = core.get(root.id).state
            assert state is not None
            assert all(core.get(fork.id).state is state for fork in forks)
        for at, fork in enumerate(forks[:4]):
            fork.append([at, 7])
        requests = [fork.submit(max_tokens=_STEPS) for fork in forks[:4]]
        said = [request.result().tokens for request in requests]
        for fork in forks:
            fork.close()
    assert said == [_fresh(engine, [*_TEXT, at, 7]) for at in range(4)]


@pytest.mark.parametrize("count", [1, 7, 8, 9, 31])
def test_a_fork_at_any_point_equals_a_fresh_context(engine: Engine, count: int) -> None:
    """At the edges of pages and between them; fork and parent go on side by side."""
    with engine.context(_TEXT[:count]) as parent:
        parent.prefill().result()
        with parent.fork() as fork:
            fork.append(_TEXT[40:43])
            requests = [each.submit(max_tokens=_STEPS) for each in (parent, fork)]
            said = [request.result().tokens for request in requests]
    assert said == [_fresh(engine, _TEXT[:count]), _fresh(engine, [*_TEXT[:count], *_TEXT[40:43]])]


@pytest.mark.parametrize("cut", [29, 21, 20, 19, 11, 10, 9, 1])
def test_a_cut_right_at_and_across_checkpoints(engine: Engine, cut: int) -> None:
    """The nearest state before the cut takes over, a notice tells what is computed again, the text is right."""
    before = max((each for each in _CHECKPOINTS if each <= cut), default=0)
    with _with_checkpoints(engine) as context:
        with engine.listen() as events:
            context.truncate(cut)
            told = [event for event in events.drain() if isinstance(event, ContextRewound)]
        assert context.num_resident == before
        assert told == ([] if cut == before else [ContextRewound(context.id, before, cut - before)])
        context.append(_TEXT[50:52])
        done = context.generate(max_tokens=_STEPS)
    assert done.prefilled_tokens == cut + 2 - before
    assert done.tokens == _fresh(engine, [*_TEXT[:cut], *_TEXT[50:52]])
