"""Events and headers from the JSON of a trace's lines, checked field by field."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import orjson

from pie_mlx.errors import PieError
from pie_mlx.search.trace_events import EVENTS, SCHEMA, Event, FinishReason, Header, Verdict
from pie_mlx.search.tree import NodeId, NodePages, PoolCounts, Score, TokenCounts, parse_node_id

_T = TypeVar("_T")


class EventError(ValueError):
    """A line is not an event; says why."""


class UnknownEventError(EventError):
    """A kind or a field that this version does not know."""


def parse_line(line: bytes, convert: Callable[[object], _T]) -> _T:
    """Return what ``convert`` makes of a line's JSON.

    Raises:
        EventError: ``convert`` refused it.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    try:
        return convert(orjson.loads(line))
    except ValueError:
        # Only the slow parser knows lone surrogates and whole numbers of more than 64 bits; and it words the refusal.
        return convert(json.loads(line))


def event_from_json(line: object) -> Event:
    """Return the event that a line's JSON holds.

    Raises:
        UnknownEventError: its kind or a field of it is not known to this version.
        EventError: it is not an object, or a field is missing or of the wrong type.
    """
    if not isinstance(line, dict):
        raise EventError("the line is not an object")
    reader = _READERS.get(line.get("event", ""))
    if reader is None:
        raise UnknownEventError(f"unknown event {str(line.get('event'))[:40]!r}")
    cls, plain, converters, required = reader
    values = dict(line)
    del values["event"]
    for name, value in line.items():
        # Most fields are of a plain type, and need a look only; the type itself is asked for, since True is an int.
        if type(value) is not plain.get(name) or (type(value) is int and value < 0):
            convert = converters.get(name)
            if convert is not None:
                values[name] = convert(name, value)
            elif name != "event":
                raise UnknownEventError(f"unknown field {name[:40]!r} in a {cls.event} event")
    if not required.issubset(values):
        raise EventError(f"a {cls.event} event without {', '.join(sorted(required.difference(values)))}")
    return cls(**values)


_Convert = Callable[[str, Any], Any]


def _text(name: str, value: object) -> str:
    if type(value) is not str:
        raise EventError(f"{name} is not text")
    return value


@lru_cache(maxsize=4096)
def _known_id(value: str) -> NodeId:
    """Return an id; the events of one node stand close together, so that most are checked once."""
    return NodeId(sys.intern(parse_node_id(value)))


def _node_id(name: str, value: object) -> NodeId:
    try:
        return _known_id(_text(name, value))
    except PieError as error:
        raise EventError(f"{name}: {error}") from error


def _integer(name: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise EventError(f"{name} is not a whole number from 0 up")
    return value


def _boolean(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise EventError(f"{name} is neither true nor false")
    return value


def _optional(convert: Callable[[str, Any], _T]) -> Callable[[str, Any], _T | None]:
    return lambda name, value: None if value is None else convert(name, value)


def _ids(name: str, value: object) -> tuple[NodeId, ...]:
    if not isinstance(value, list):
        raise EventError(f"{name} is not a list")
    return tuple(_node_id(name, item) for item in value)


def _word(enum: type[StrEnum]) -> _Convert:
    words = {member.value: member for member in enum}

    def convert(name: str, value: object) -> StrEnum:
        if not isinstance(value, str) or value not in words:
            raise UnknownEventError(f"{name} is {str(value)[:40]!r}, which is none of {', '.join(words)}")
        return words[value]

    return convert


def _numbers(cls: type[TokenCounts | NodePages | PoolCounts]) -> _Convert:
    known = {f.name for f in fields(cls)}

    def convert(name: str, value: object) -> object:
        if not isinstance(value, dict) or not known.issuperset(value):
            raise EventError(f"{name} is not an object of {', '.join(sorted(known))}")
        for key, number in value.items():
            if type(number) is not int or number < 0:
                raise EventError(f"{name}.{key} is not a whole number from 0 up")
        return cls(**value)

    return convert


def _score(name: str, value: object) -> Score:
    if not isinstance(value, dict):
        raise EventError(f"{name} is not an object")
    try:
        return Score(**value)
    except (TypeError, PieError) as error:
        raise EventError(f"{name}: {error}") from error


_BY_TYPE: dict[str, _Convert] = {
    "str": _text,
    "int": _integer,
    "bool": _boolean,
    "NodeId": _node_id,
    "NodeId | None": _optional(_node_id),
    "str | None": _optional(_text),
    "bool | None": _optional(_boolean),
    "tuple[NodeId, ...]": _ids,
    "Score": _score,
    "Verdict": _word(Verdict),
    "FinishReason": _word(FinishReason),
    "TokenCounts": _numbers(TokenCounts),
    "NodePages": _numbers(NodePages),
    "PoolCounts": _numbers(PoolCounts),
    "PoolCounts | None": _optional(_numbers(PoolCounts)),
}
_PLAIN: dict[str, type] = {"str": str, "int": int, "bool": bool, "str | None": str, "bool | None": bool}
_READERS: dict[str, tuple[type[Event], dict[str, type], dict[str, _Convert], frozenset[str]]] = {
    cls.event: (
        cls,
        {f.name: _PLAIN[str(f.type)] for f in fields(cls) if str(f.type) in _PLAIN},
        {f.name: _BY_TYPE[str(f.type)] for f in fields(cls)},
        frozenset({"seq", "t_ns"} | {f.name for f in fields(cls) if f.default is MISSING}),
    )
    for cls in EVENTS
}


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
