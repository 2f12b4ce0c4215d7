"""Events and headers from the JSON of a trace's lines, checked field by field."""

from __future__ import annotations

import functools
import json
import operator
from enum import StrEnum

import msgspec
from msgspec.structs import fields

from pie_mlx.errors import PieError
from pie_mlx.search.trace_events import EVENTS, SCHEMA, Event, Header, kind_of


class EventError(ValueError):
    """A line is not an event; says why."""


class UnknownEventError(EventError):
    """A kind or a field that this version does not know."""


def read_event(line: bytes) -> Event:
    """Return the event that a line of a trace holds.

    Raises:
        UnknownEventError: its kind or a field of it is not known to this version.
        EventError: it is not an object, or a field is missing or of the wrong type.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    try:
        event: Event = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, PieError):
        # The way that can say what is wrong; it alone knows lone surrogates and numbers of more than 64 bits too.
        return event_from_json(json.loads(line))
    # The decoder makes 0 of a number or a time that is not there, as events have before they are stamped.
    return event if event.seq and event.t_ns else event_from_json(json.loads(line))


def read_header(line: bytes) -> Header:
    """Return the header that the first line of a trace holds.

    Raises:
        UnknownEventError: as :func:`header_from_json`.
        EventError: as :func:`header_from_json`.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return header_from_json(json.loads(line))


def event_from_json(line: object) -> Event:
    """Return the event that a line's JSON holds.

    Raises:
        UnknownEventError: its kind or a field of it is not known to this version.
        EventError: it is not an object, or a field is missing or of the wrong type.
    """
    if not isinstance(line, dict):
        raise EventError("the line is not an object")
    cls = _KINDS.get(str(line.get("event")))
    if cls is None:
        raise UnknownEventError(f"unknown event {str(line.get('event'))[:40]!r}")
    known = {each.name: each for each in fields(cls)}
    for name, value in line.items():
        if name == "event":
            continue
        if name not in known:
            raise UnknownEventError(f"unknown field {name[:40]!r} in a {kind_of(cls)} event")
        words = _words(known[name].type)
        if words and isinstance(value, str) and value not in words:
            raise UnknownEventError(f"{name} is {value[:40]!r}, which is none of {', '.join(words)}")
    missing = {"seq", "t_ns"} | {each.name for each in known.values() if each.required}
    missing.difference_update(line)
    if missing:
        raise EventError(f"a {kind_of(cls)} event without {', '.join(sorted(missing))}")
    try:
        return msgspec.convert(line, cls)
    except (msgspec.ValidationError, PieError) as error:
        raise EventError(str(error)) from error


def _words(kind: object) -> list[str]:
    """Return the words that a field of a type may hold; none where it is no enumeration."""
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, StrEnum) else []


_KINDS = {kind_of(cls): cls for cls in EVENTS}
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(functools.reduce(operator.or_, EVENTS))


def header_from_json(line: object) -> Header:
    """Return the header that a trace's first line holds.

    Raises:
        UnknownEventError: the schema is not :data:`~pie_mlx.search.trace_events.SCHEMA`, or a field is not known.
        EventError: it is not a header, or a field is missing or of the wrong type.
    """
    if not isinstance(line, dict) or not isinstance(line.get("schema"), str):
        raise EventError("the first line is not a trace header")
    schema = line["schema"]
    if schema != SCHEMA:
        kind = UnknownEventError if schema.startswith("pie-mlx.tot/") else EventError
        raise kind(f"the schema is {schema[:40]!r}, this version reads {SCHEMA!r}")
    values = {name: value for name, value in line.items() if name != "schema"}
    for name, value in values.items():
        wanted = _HEADER.get(name)
        if wanted is None:
            raise UnknownEventError(f"unknown field {name[:40]!r} in the header")
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise EventError(f"{name} of the header has the wrong type")
    missing = {"run", "model", "revision", "seed", "task"}.difference(values)
    if missing:
        raise EventError(f"a header without {', '.join(sorted(missing))}")
    return Header(**values)


_HEADER: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "model": str,
    "revision": str,
    "seed": int,
    "task": str,
    "params": dict,
    "pool": dict,
    "created_s": (int, float),
}
