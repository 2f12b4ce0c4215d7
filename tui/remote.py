"""A server elsewhere: its readings come over HTTP, again and again, and go the way of a local engine's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from pie_mlx.engine.readings import ContextReading, PageReading, Readings, RequestReading
from pie_mlx.errors import PieError, UsageError
from pie_mlx.events import Alarm, Event, PageCounts, StepDone
from pie_mlx.ids import ContextId, PageId
from pie_mlx.tui.alarms import UNREACHABLE
from pie_mlx.tui.bridge import Bridge

_SCHEMA = "pie-mlx.pages/1"
_TIMEOUT_S = 10.0
_LARGEST = 64 << 20
LOOK_S = 1.0
"""Seconds between two looks."""
_T = TypeVar("_T", ContextReading, RequestReading, PageCounts)


@dataclass(frozen=True, slots=True)
class Look:
    """What a server said at one moment."""

    model: str
    page_size: int
    readings: Readings
    pages: list[PageReading] | None
    alarms: tuple[Alarm, ...]

    @property
    def standing(self) -> object:
        """What must differ for a look to be news: everything but clocks."""
        still = [(c.id, c.num_tokens, c.num_pages, c.num_private, c.request) for c in self.readings.contexts]
        asked = [(r.id, r.phase, r.completion_tokens, r.waits_for) for r in self.readings.requests]
        counters = tuple(sorted(self.readings.counters.items()))
        return self.readings.pages, still, asked, counters, self.readings.is_alive, self.pages, len(self.alarms)


class RemoteServer:
    """One server's reading endpoint."""

    def __init__(self, url: str, *, api_key: str | None = None, look_s: float = LOOK_S) -> None:
        """Look at the server at ``url`` every ``look_s`` seconds.

        Raises:
            UsageError: it is no address.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise UsageError(f"{url!r} is not an address such as http://127.0.0.1:8080")
        self.url = url.rstrip("/")
        self.subject = self.url
        """Which model runs there."""
        self.is_lost = False
        """Whether the last look failed."""
        self._api_key = api_key
        self._look_s = look_s

    def look(self, *, with_map: bool = False) -> Look:
        """Ask once.

        Raises:
            UsageError: nobody answers, the key is refused, or what answers is not a server of this version.
        """
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        address = f"{self.url}/v1/pages" + ("?map=1" if with_map else "")
        request = Request(address, headers=headers)  # noqa: S310  the scheme is checked above
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  as above
                look = _read(json.loads(answer.read(_LARGEST)))
        except HTTPError as error:
            hint = "add --api-key KEY" if error.code == 401 else None
            raise UsageError(f"the server at {self.url} answers {error.code}", hint) from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise UsageError(f"no server answers at {self.url}: {reason}", "start one: pie-mlx serve") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"what answers at {self.url} is not a pie-mlx server of this version") from error
        self.subject = f"{look.model} · {self.url} · {look.page_size} tokens a page"
        return look

    def start(self, bridge: Bridge) -> threading.Thread:
        """Look until the screen closes, telling ``bridge`` what is new."""
        watcher = threading.Thread(target=self._watch, args=(bridge,), name="pie-tui-remote", daemon=True)
        watcher.start()
        return watcher

    def _watch(self, bridge: Bridge) -> None:
        """Look again and again; a server that went away is said once, and so is its return."""
        before: Look | None = None
        then = time.monotonic()
        while not bridge.is_closed:
            try:
                look = self.look(with_map=bridge.wants_pages)
            except PieError as error:
                if not self.is_lost:
                    self.is_lost = True
                    bridge.offer_reading(None, None, [Alarm("failure", UNREACHABLE, error.message, None, {})])
            else:
                now = time.monotonic()
                if before is None or self.is_lost or look.standing != before.standing:
                    news = list(look.alarms) + _steps(before, look, now - then)
                    bridge.offer_reading(look.readings, look.pages, news, cleared=UNREACHABLE if self.is_lost else "")
                    before, then = look, now
                self.is_lost = False
            bridge.wait_closed(self._look_s)


def _steps(before: Look | None, look: Look, elapsed_s: float) -> list[Event]:
    """Return the steps between two looks as one: the mean of what the counters say."""
    if before is None:
        return []
    num_steps = look.readings.counters.get("steps", 0) - before.readings.counters.get("steps", 0)
    tokens = look.readings.counters.get("tokens_committed", 0) - before.readings.counters.get("tokens_committed", 0)
    if num_steps <= 0:
        return []
    number = look.readings.counters["steps"]
    return [StepDone(number, round(tokens / num_steps), 0, 0, elapsed_s / num_steps, 0.0, look.readings.pages)]


def _read(facts: Mapping[str, Any]) -> Look:
    """Return a server's answer as a local engine would say it; fields of a newer version are left out.

    Raises:
        ValueError: it is of another version.
        KeyError, TypeError, AttributeError: a field is missing, or of another form.
    """
    if facts.get("schema") != _SCHEMA:
        raise ValueError("another schema")
    counts = _fields(PageCounts, facts["pages"])
    contexts = tuple(_fields(ContextReading, one) for one in facts["contexts"])
    requests = tuple(_fields(RequestReading, one) for one in facts["requests"])
    step_s = facts["step_s"]
    alarms = tuple(
        Alarm(one["level"], one["kind"], one["message"], one["request"], dict(one.get("report") or {}))
        for one in facts["alarms"]
    )
    pages = None
    if facts.get("map") is not None:
        pages = [
            PageReading(PageId(page), used, tuple(ContextId(owner) for owner in owners), bool(cached))
            for page, used, owners, cached in facts["map"]
        ]
    readings = Readings(counts, contexts, requests, dict(facts["counters"]), bool(facts["is_alive"]), step_s)
    return Look(str(facts["model"]), int(facts["page_size"]), readings, pages, alarms)


def _fields(cls: type[_T], given: Mapping[str, Any]) -> _T:
    """Return a reading from the fields that this version knows."""
    return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
