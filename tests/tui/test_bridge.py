"""Events become one message at a time; nothing is lost, and nothing stirs while nothing comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from textual.message import Message

from pie_mlx.engine import Engine
from pie_mlx.search.trace import Event, NodeStarted
from pie_mlx.search.tree import NodeId
from pie_mlx.tui.bridge import Bridge


class Screen:
    """Counts what is posted, and takes it when told."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.posted: list[Message] = []
        self.arrived = threading.Semaphore(0)

    def post(self, message: Message) -> bool:
        """Take a message."""
        self.posted.append(message)
        self.arrived.release()
        return True


def event(number: int) -> Event:
    """Return an event that can be told from others."""
    return NodeStarted(node=NodeId("0"), seed=number)


def test_a_burst_is_one_message_and_the_last_event_is_in_it() -> None:
    """While a message waits to be taken, no second one is posted; all events come, in order."""
    screen, bridge = Screen(), Bridge(pace_s=0.0)
    bridge.open(screen.post)
    seeds: list[int] = []
    for number in range(5000):
        bridge.offer(event(number))
    while len(seeds) < 5000:
        assert screen.arrived.acquire(timeout=20)
        assert len(screen.posted) == 1
        screen.posted.clear()
        seeds += [each.seed for each in bridge.take().search if isinstance(each, NodeStarted)]
    bridge.close()
    assert seeds == list(range(5000))
    assert bridge.is_quiet


def test_without_a_taker_only_one_message_waits() -> None:
    """A screen that is busy finds one message, not a queue of them."""
    screen, bridge = Screen(), Bridge(pace_s=0.0)
    bridge.open(screen.post)
    bridge.offer(event(0))
    assert screen.arrived.acquire(timeout=20)
    for number in range(1, 50):
        bridge.offer(event(number))
    assert not screen.arrived.acquire(timeout=0.05)
    first = bridge.take()
    assert screen.arrived.acquire(timeout=20)
    rest = bridge.take()
    bridge.close()
    assert len(first.search) + len(rest.search) == 50


def test_the_pace_is_kept() -> None:
    """Between two messages there is at least the pace, however fast they are taken."""
    screen, bridge = Screen(), Bridge(pace_s=0.1)
    bridge.open(screen.post)
    times = []
    for number in range(3):
        bridge.offer(event(number))
        assert screen.arrived.acquire(timeout=20)
        times.append(time.monotonic())
        bridge.take()
    bridge.close()
    assert times[2] - times[0] >= 0.19


def test_idle_means_nothing_is_posted() -> None:
    """Without events there are no messages."""
    screen, bridge = Screen(), Bridge(pace_s=0.0)
    bridge.open(screen.post)
    assert not screen.arrived.acquire(timeout=0.2)
    bridge.close()


def test_the_last_batch_shows_the_state_that_its_events_led_to(start_engine: Callable[..., Engine]) -> None:
    """Readings are taken after the events, so that what is shown at rest is true."""
    engine = start_engine()
    screen, bridge = Screen(), Bridge(pace_s=0.0)
    bridge.wants_pages = True
    bridge.open(screen.post, engine)
    with engine.context(range(1, 30), name="root") as root:
        root.generate(max_tokens=5)
    batches = []
    while screen.arrived.acquire(timeout=0.5):
        batches.append(bridge.take())
    bridge.close()
    assert batches[-1].readings is not None
    assert batches[-1].readings.contexts == ()
    assert batches[-1].pages is not None
    assert {page.owners for page in batches[-1].pages} <= {()}


def test_close_ends_the_threads(start_engine: Callable[..., Engine]) -> None:
    """A closed bridge leaves no thread behind."""
    engine = start_engine()
    before = threading.active_count()
    bridge = Bridge(pace_s=0.0)
    bridge.open(Screen().post, engine)
    assert threading.active_count() > before
    bridge.close()
    deadline = time.monotonic() + 20
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
