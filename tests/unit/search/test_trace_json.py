"""A line of a trace is read the same by the fast way and by the one that can say what is wrong with it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pie_mlx.errors import Fact
from pie_mlx.search.trace import Event, EventError, UnknownEventError, event_from_json, read_event

RunEvents = Callable[[], list[Event]]

TEXT = st.text(st.characters(codec=None), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def outcome(read: Callable[[], Event]) -> Event | tuple[type, str]:
    """Return the event, or the error's type and words."""
    try:
        return read()
    except ValueError as error:
        return type(error), str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(data=st.data())
def test_both_ways_agree(run_events: RunEvents, data: st.DataObject) -> None:
    """Whatever is put into a line, left out of it, or renamed in it: the same event, or the same error."""
    line = copy.deepcopy(data.draw(st.sampled_from(run_events())).to_json())
    line["seq"] = 3
    where = line
    for _ in range(data.draw(st.integers(0, 2))):
        inner: list[dict[str, Fact]] = [value for value in where.values() if isinstance(value, dict)]
        if inner and data.draw(st.sampled_from((False, True))):
            where = data.draw(st.sampled_from(inner))
        if not where:
            break
        name = data.draw(st.sampled_from(sorted(where)) | TEXT)
        if data.draw(st.booleans()):
            where.pop(name, None)
        else:
            where[name] = data.draw(VALUES)
    written = json.dumps(line).encode()
    assert outcome(lambda: read_event(written)) == outcome(lambda: event_from_json(json.loads(written)))


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        (b'{"event":"notice","seq":1,"text":"x"}', EventError, "without t_ns"),
        (b'{"event":"notice","seq":1,"text":"\\"t_ns\\":0"}', EventError, "without t_ns"),
        (b'{"event":"notice","t_ns":4,"text":"x"}', EventError, "without seq"),
        (b'{"event":"notice","seq":1,"t_ns":4}', EventError, "without text"),
        (b'{"event":"node_start","seq":1,"t_ns":4,"node":"0.01"}', EventError, "node"),
        (b'{"event":"node_start","seq":1,"t_ns":4,"node":"0\\n"}', EventError, "node"),
        (b'{"event":"pages","seq":1,"t_ns":4,"pool":{"free":-1}}', EventError, "pool.free"),
        (b'{"event":"score","seq":1,"t_ns":4,"node":"0","score":{"value":NaN,"kind":"exact"}}', EventError, "finite"),
        (b'{"event":"wormhole","seq":1,"t_ns":4}', UnknownEventError, "wormhole"),
        (b'{"seq":1,"t_ns":4}', UnknownEventError, "None"),
        (b"[]", EventError, "not an object"),
        (b'{"event":"notice","seq":1,"t_ns":4,"text":"x"', json.JSONDecodeError, "delimiter"),
    ],
)
def test_what_is_wrong_is_named(line: bytes, kind: type[ValueError], words: str) -> None:
    """The error says which field, and its type says whether a newer version may know better."""
    with pytest.raises(ValueError, match=words) as caught:
        read_event(line)
    assert type(caught.value) is kind
