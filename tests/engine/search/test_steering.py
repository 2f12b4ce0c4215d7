"""A run is steered while it runs, from another thread and between its own events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pie_mlx.errors import InvalidParameter, UsageError
from pie_mlx.search.errors import TreeError
from pie_mlx.search.node import NodeId, NodeStatus
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import (
    Edited,
    Event,
    FinishReason,
    Inserted,
    Locked,
    NodeDone,
    Paused,
    Pruned,
    Resumed,
    Selected,
)

SMALL = SearchParams(max_tokens=12, answer_tokens=12, breadth=2, beam=1)
TASK = Free("Why?", depth=3)


def steered(
    engine: Any, act: Callable[[Run, Event], None], params: SearchParams = SMALL
) -> tuple[SearchResult, list[Event], Run]:
    """Run to the end while ``act`` sees every event."""
    events: list[Event] = []
    runs: list[Run] = []

    def listen(event: Event) -> None:
        events.append(event)
        act(runs[0], event)

    runs.append(Run(engine, TASK, params, listen=listen))
    return runs[0].result(60), events, runs[0]


def done(event: Event, node: str) -> bool:
    """Whether an event ends the thought of a node."""
    return isinstance(event, NodeDone) and event.node == node


def test_pause_stands_still_until_resume(start_engine: Any) -> None:
    """A paused run tells nothing new; resumed, it ends with the tree that it would have had."""
    engine = start_engine()
    plain, _, _ = steered(engine, lambda _run, _event: None)
    events: list[Event] = []
    paused = threading.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, Paused):
            paused.set()

    run = Run(engine, TASK, SMALL, listen=listen)
    run.pause()
    run.start()
    assert paused.wait(20)
    assert run.tree.paused
    assert isinstance(events[-1], Paused)
    run.resume()
    result = run.result(60)
    assert any(isinstance(event, Resumed) for event in events)
    assert [n.text for n in result.nodes] == [n.text for n in plain.nodes]


def test_step_does_one_action(start_engine: Any) -> None:
    """Each step lets exactly one action pass: the first one writes the first thoughts."""
    paused = threading.Semaphore(0)

    def listen(event: Event) -> None:
        if isinstance(event, Paused):
            paused.release()

    run = Run(start_engine(), TASK, SMALL, listen=listen)
    run.pause()
    run.start()
    assert paused.acquire(timeout=20)
    assert len(run.tree) == 1
    run.step()
    assert paused.acquire(timeout=20)
    with run.tree_lock:
        assert len(run.tree) == 3
        assert run.tree.num_steps == 1
        assert all(node.value is None for node in run.tree.nodes.values())
    run.resume()
    assert run.result(60).answer


def test_a_cancelled_pause_ends(start_engine: Any) -> None:
    """A run that stands still can be cancelled."""
    run = Run(start_engine(), TASK, SMALL)
    run.pause()
    run.start()
    run.cancel()
    assert run.result(60).finish_reason is FinishReason.CANCELLED


def test_prune_closes_a_subtree_while_it_is_written(start_engine: Any) -> None:
    """A node that is pruned in the middle of its level is cancelled, and its pages come back."""

    def act(run: Run, event: Event) -> None:
        if done(event, "0.0"):
            run.prune(NodeId("0.1"))

    result, events, _ = steered(start_engine(), act)
    pruned = [event for event in events if isinstance(event, Pruned) and event.node == "0.1"]
    assert len(pruned) == 1
    assert not any(done(event, "0.1") for event in events)
    assert result.answer
    assert result.pages.free_after == result.pages.free_before


def test_pruning_everything_ends_the_search(start_engine: Any) -> None:
    """Without any node left the run is unsolved; it does not spin."""

    def act(run: Run, event: Event) -> None:
        if isinstance(event, NodeDone) and event.node.count(".") == 1:
            run.prune(event.node)

    result, _, _ = steered(start_engine(), act)
    assert result.finish_reason is FinishReason.UNSOLVED
    assert result.answer is None


def test_expand_writes_more_children_with_their_own_seed(start_engine: Any) -> None:
    """A node expanded again gets the wished number of children, and they differ from the first ones."""

    def act(run: Run, event: Event) -> None:
        if done(event, "0.1"):
            run.expand(NodeId("0"), 3, 1234)

    result, events, _ = steered(start_engine(), act)
    children = [node for node in result.nodes if node.parent == "0"]
    assert [node.id for node in children] == ["0.0", "0.1", "0.2", "0.3", "0.4"]
    assert len({node.text for node in children}) == 5
    assert any("expand again: breadth 3, seed 1234" in getattr(event, "text", "") for event in events)


def test_edit_replaces_a_thought_and_what_followed_it(start_engine: Any) -> None:
    """The new text stands in the tree without its old score, and children of the old one are pruned."""

    def act(run: Run, event: Event) -> None:
        if done(event, "0.0.0"):
            run.edit(NodeId("0.0"), "light is scattered")

    params = replace(SMALL, beam=2)
    result, events, _ = steered(start_engine(), act, params)
    edited = next(node for node in result.nodes if node.id == "0.0")
    assert edited.text == "light is scattered"
    assert any(isinstance(event, Edited) for event in events)
    assert next(node for node in result.nodes if node.id == "0.0.0").status == NodeStatus.PRUNED


def test_an_inserted_thought_competes_in_its_level(start_engine: Any) -> None:
    """A thought added by hand is scored with its siblings and may be followed."""

    def act(run: Run, event: Event) -> None:
        if done(event, "0.0"):
            run.insert(NodeId("0"), "blue light is scattered most")

    result, events, _ = steered(start_engine(), act, replace(SMALL, beam=3))
    inserted = next(event for event in events if isinstance(event, Inserted))
    node = next(node for node in result.nodes if node.id == inserted.node)
    assert node.text == "blue light is scattered most"
    assert node.score is not None
    assert any(child.parent == node.id for child in result.nodes)


def test_a_locked_node_stays_in_the_beam(start_engine: Any) -> None:
    """The worst node of the level is followed when it is locked."""
    worst = {"node": ""}

    def find(_run: Run, event: Event) -> None:
        if isinstance(event, Selected) and not worst["node"] and event.nodes:
            worst["node"] = "0.1" if event.nodes[0] == "0.0" else "0.0"

    steered(start_engine(), find)

    def act(run: Run, event: Event) -> None:
        if done(event, worst["node"]):
            run.lock(NodeId(worst["node"]))

    result, events, _ = steered(start_engine(), act)
    assert any(isinstance(event, Locked) for event in events)
    assert any(node.parent == worst["node"] for node in result.nodes)


def test_accept_makes_a_node_the_answer(start_engine: Any) -> None:
    """Accepting ends the run with this node, finished or not."""

    def act(run: Run, event: Event) -> None:
        if done(event, "0.1"):
            run.accept(NodeId("0.0"))

    result, _, _ = steered(start_engine(), act)
    assert result.finish_reason is FinishReason.ANSWER
    assert result.node == "0.0"
    assert result.answer
    assert result.nodes[1].text in result.answer


def test_a_node_becomes_a_chat(start_engine: Any) -> None:
    """The forked context has the node's tokens, is the caller's own, and outlives the run."""
    engine = start_engine()
    chats: list[Any] = []

    def act(run: Run, event: Event) -> None:
        if done(event, "0.0"):
            chats.append(run.fork_to_chat(NodeId("0.0")))

    result, _, run = steered(engine, act)
    after = run.fork_to_chat(NodeId("0.0"))
    with chats[0] as chat:
        assert chat.tokens == after.tokens
        assert chat.generate(max_tokens=3).completion_tokens == 3
    after.close()
    assert result.pages.free_after <= 512
    pages = engine.readings().pages
    assert pages.free + pages.cached == 512


def test_wishes_without_meaning_are_refused_at_once(start_engine: Any) -> None:
    """Unknown nodes, the root, empty thoughts and a run that is over: typed errors in the caller."""
    refused: list[type[Exception]] = []

    def act(run: Run, event: Event) -> None:
        if not done(event, "0.1"):
            return
        wishes: list[Callable[[], object]] = [
            lambda: run.prune(NodeId("0.9")),
            lambda: run.prune(NodeId("0")),
            lambda: run.edit(NodeId("0.0"), "  "),
            lambda: run.insert(NodeId("0.7"), "x"),
            lambda: run.expand(NodeId("0.0"), 0),
        ]
        for wish in wishes:
            with pytest.raises((TreeError, InvalidParameter)) as caught:
                wish()
            refused.append(caught.type)

    _, _, run = steered(start_engine(), act)
    assert refused == [TreeError, TreeError, InvalidParameter, TreeError, InvalidParameter]
    with pytest.raises(UsageError, match="over"):
        run.pause()
