"""A listener's queue: complete while somebody looks, bounded when nobody does, and the newest is never lost."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.engine import listening
from pie_mlx.engine.listening import MAX_EVENTS, Listeners, Subscription
from pie_mlx.events import ContextOpened, EngineEnded, Event, EventsDropped, PageCounts, RequestSubmitted, StepDone
from pie_mlx.ids import ContextId, RequestId

PAGES = PageCounts(8, 8, 0, 0, 0, 0)


def step(number: int) -> StepDone:
    """Make a step's event."""
    return StepDone(number, 1, 0, 0, 0.0, 0.0, PAGES)


def submitted(number: int) -> RequestSubmitted:
    """Make an event that is no step."""
    return RequestSubmitted(RequestId(number), ContextId(number))


def test_who_never_looks_keeps_a_bounded_number() -> None:
    """A million events cost no more than the limit; the newest are there, and the loss is counted by kind."""
    listeners = Listeners()
    idle = listeners.subscribe()
    most = 0
    for number in range(100_000):
        listeners.emit(step(number))
        if number % 5_000 == 0:
            listeners.emit(submitted(number))
        most = max(most, len(idle._events))
    listeners.emit(EngineEnded("the device failed"))
    events = idle.drain()
    assert most <= MAX_EVENTS
    dropped = events[0]
    assert isinstance(dropped, EventsDropped)
    assert events[-1] == EngineEnded("the device failed")
    assert events[-2] == step(99_999)
    assert [event for event in events if isinstance(event, RequestSubmitted)] == [
        submitted(number) for number in range(0, 100_000, 5_000)
    ], "steps give way first"
    assert dropped.num_others == 0
    assert dropped.num_steps + sum(isinstance(event, StepDone) for event in events) == 100_000
    assert idle.drain() == [], "the loss is told once"


def test_even_what_is_no_step_is_bounded() -> None:
    """A flood of requests cannot fill the memory either: the oldest go, counted."""
    idle = Listeners().subscribe()
    for number in range(35_000):
        idle.put(submitted(number))
    first = idle.get(0.0)
    assert isinstance(first, EventsDropped)
    rest = idle.drain()
    assert first.num_steps == 0
    assert first.num_others + len(rest) == 35_000
    assert rest == [submitted(number) for number in range(35_000 - len(rest), 35_000)]
    assert MAX_EVENTS // 2 <= len(rest) <= MAX_EVENTS


@given(st.lists(st.sampled_from(["step", "other", "get", "drain"]), max_size=120))
def test_nothing_is_lost_without_being_counted(moves: list[str]) -> None:
    """Whatever comes and whenever somebody looks: told and dropped add up, in order, never above the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listening, "MAX_EVENTS", 8)
        queue = Subscription(lambda _queue: None)
        sent: deque[Event] = deque()
        seen: list[Event] = []
        number = 0
        for move in moves:
            if move in ("step", "other"):
                number += 1
                event = step(number) if move == "step" else submitted(number)
                sent.append(event)
                queue.put(event)
                assert len(queue._events) <= 8
            elif move == "drain":
                seen += queue.drain()
            elif (taken := queue.get(0.0)) is not None:
                seen.append(taken)
        seen += queue.drain()
    told = [event for event in seen if not isinstance(event, EventsDropped)]
    lost = [event for event in seen if isinstance(event, EventsDropped)]
    places = [list(sent).index(event) for event in told]
    assert places == sorted(set(places)), "in the order in which they came, each once"
    num_steps = sum(isinstance(event, StepDone) for event in sent)
    assert sum(event.num_steps for event in lost) == num_steps - sum(isinstance(e, StepDone) for e in told)
    assert sum(event.num_others for event in lost) + sum(event.num_steps for event in lost) + len(told) == len(sent)
    if sent:
        assert told[-1] == sent[-1], "the newest is never dropped"


def test_a_listener_that_waits_is_woken() -> None:
    """`get` sleeps until an event comes, and gives up when its time is over."""
    queue = Listeners().subscribe()
    assert queue.get(0.01) is None
    got: list[Event | None] = []
    waiting = threading.Thread(target=lambda: got.append(queue.get(20)))
    waiting.start()
    queue.put(ContextOpened(ContextId(1), "", None, 3))
    waiting.join(20)
    assert got == [ContextOpened(ContextId(1), "", None, 3)]
    for number in range(3):
        queue.put(step(number))
    assert [queue.get(0.0) for _ in range(4)] == [step(0), step(1), step(2), None]
