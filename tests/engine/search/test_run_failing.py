"""Runs over the fake device that fail, are cut off or are refused: each ends with its type, and frees its pages."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from pie_mlx.backend.fake import Faults
from pie_mlx.errors import DeviceFailed, InvalidParameter, TokenizerMissing
from pie_mlx.search.failures import NothingProposedError
from pie_mlx.search.node import NodeStatus
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Judging
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.trace_events import (
    Event,
    FinishReason,
    NodeDone,
    Scored,
)

SMALL = SearchParams(max_tokens=16, answer_tokens=24, breadth=3, beam=2, rollouts=4, budget_nodes=40)
QUESTION = "Why is the sky blue?"


# --- faults ------------------------------------------------------------------------------


def test_one_failing_node_does_not_end_the_run(start_engine: Any) -> None:
    """A row that fails marks its node; the run goes on with the others to an answer."""
    result = Run(start_engine(faults=Faults(fail_row=frozenset({6}))), Free(QUESTION), SMALL).result(60)
    failed = [node for node in result.nodes if node.status == NodeStatus.FAILED]
    assert len(failed) == 1
    assert result.finish_reason is FinishReason.ANSWER
    assert result.pages.free_after == 512


def test_a_device_that_fails_everything_ends_the_run_with_its_error(start_engine: Any) -> None:
    """With nothing left to go on with, the run fails, and the device's error keeps its type."""
    result = Run(start_engine(faults=Faults(fail=frozenset(range(500)))), Free(QUESTION), SMALL).result(60)
    assert result.finish_reason is FinishReason.FAILED
    assert isinstance(result.error, DeviceFailed)
    assert result.pages.free_after == 512
    assert result.exit_code == 4


def test_a_failing_judgement_is_not_a_score_of_zero(start_engine: Any) -> None:
    """A judgement that the device failed on has no value and says why, and an alarm tells of it."""
    events: list[Event] = []
    # One step is the root's prefill, then 17 write the first thoughts; the judging step follows.
    for step in range(12, 24):
        events.clear()
        engine = start_engine(faults=Faults(fail=frozenset({step})))
        result = Run(engine, Free(QUESTION), SMALL, listen=events.append).result(60)
        broken = [event.score for event in events if isinstance(event, Scored) and event.score.error is not None]
        if broken:
            assert all(score.value is None and "device_failed" in (score.error or "") for score in broken)
            assert any("judge" in alarm for alarm in result.alarms)
            return
    pytest.fail("no step of these was a judging step")


def test_a_listener_that_raises_ends_the_run_and_frees_the_pages(start_engine: Any) -> None:
    """An exception in the middle comes out of result() as it is, and no context stays open."""
    engine = start_engine()

    def listen(event: Event) -> None:
        if isinstance(event, NodeDone) and event.node.count(".") == 2:
            raise RuntimeError("the listener broke")

    run = Run(engine, Free(QUESTION), SMALL, listen=listen)
    with pytest.raises(RuntimeError, match="the listener broke"):
        run.result(60)
    pages = engine.readings().pages
    assert pages.free + pages.cached == 512
    assert not engine.readings().contexts


def test_cancel_ends_the_run_with_its_pages_free(start_engine: Any) -> None:
    """Cancelled in the middle of a level: one terminal event, and every page back."""
    engine = start_engine()
    runs: list[Run] = []

    def listen(event: Event) -> None:
        if isinstance(event, NodeDone) and event.node == "0.1":
            runs[0].cancel()

    runs.append(Run(engine, Free(QUESTION), SMALL, listen=listen))
    result = runs[0].result(60)
    assert result.finish_reason is FinishReason.CANCELLED
    assert result.exit_code == 130
    assert result.pages.free_after == 512
    assert all(node.status != NodeStatus.WRITING for node in result.nodes)


def test_a_keyboard_interrupt_gives_the_pages_back_first(start_engine: Any) -> None:
    """Ctrl-C in result() cancels the run, waits for its end, and goes on up."""
    engine = start_engine()
    run = Run(engine, Free(QUESTION), SMALL)
    run.pause()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.result(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert run.is_over
    assert not engine.readings().contexts


# --- what is refused before anything runs -------------------------------------------------


class _Mute(Game24):
    """A task that proposes nothing."""

    name: ClassVar[str] = "mute"

    def legal_moves(self, state: object) -> list[str]:
        """List no move."""
        return []


def test_a_run_without_a_node_is_a_failure(start_engine: Any) -> None:
    """Nothing proposed is not an empty success."""
    result = Run(start_engine(), _Mute(4, 4, 6, 8), SearchParams(propose="legal", scorer="none")).result(60)
    assert result.finish_reason is FinishReason.FAILED
    assert isinstance(result.error, NothingProposedError)
    assert result.exit_code == 1


def test_legal_moves_are_asked_only_of_tasks_that_have_them(start_engine: Any) -> None:
    """The refusal comes before any work."""
    with pytest.raises(InvalidParameter, match="legal"):
        Run(start_engine(), Free(QUESTION), SearchParams(propose="legal"))


def test_the_oracle_is_used_only_on_purpose_and_said(start_engine: Any) -> None:
    """A known truth scores only with the flag, and the result says so."""
    with pytest.raises(InvalidParameter, match="oracle"):
        SearchParams(scorer="oracle")
    params = SearchParams(scorer="oracle", oracle=True, propose="legal", beam=5)
    result = Run(start_engine(), Game24(4, 4, 6, 8), params).result(60)
    assert result.to_json()["oracle"] is True
    assert "oracle" not in Run(start_engine(), Free(QUESTION), SMALL).result(60).to_json()


def test_an_engine_without_text_is_refused(start_engine: Any) -> None:
    """A search needs a tokenizer."""
    engine = start_engine()
    engine.codec = None
    with pytest.raises(TokenizerMissing):
        Run(engine, Free(QUESTION), SMALL)


class _Digits(Free):
    """A task whose labels start with one character."""

    def judging(self, state: object) -> Judging:
        """Ask for 1 or 10."""
        return Judging("\nRate:", {"1": 0.0, "10": 1.0})


def test_labels_that_start_alike_are_refused_before_any_work(start_engine: Any) -> None:
    """The refusal comes when the run is made, not after the first level was written."""
    engine = start_engine()
    with pytest.raises(InvalidParameter, match="labels"):
        Run(engine, _Digits(QUESTION), SMALL)
    assert engine.backend.num_steps == 0


def test_reasoning_is_asked_only_of_thinking_models(start_engine: Any) -> None:
    """A budget of reasoning tokens for a model without think markers is refused."""
    with pytest.raises(InvalidParameter, match="reasoning_tokens"):
        Run(start_engine(), Free(QUESTION), replace(SMALL, reasoning_tokens=8))
