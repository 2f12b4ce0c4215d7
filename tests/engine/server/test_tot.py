"""Searches over HTTP: a stream with one terminal event, steering while it runs, and pages that come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from pie_mlx.search.trace_events import Finished
from pie_mlx.search.trace_json import event_from_json, header_from_json

SMALL = {"breadth": 2, "beam": 1, "depth": 2, "max_tokens": 8, "answer_tokens": 8, "seed": 3}


def ask(server: Any, **fields: Any) -> httpx2.Response:
    """Ask for a search and wait for its end."""
    response: httpx2.Response = server.http.post("/v1/tot", json={"question": "why?", "params": SMALL, **fields})
    return response


def test_a_search_is_a_trace_with_one_terminal_event(serve: Any, events: Callable[..., Any]) -> None:
    """The stream is the trace: a header, events numbered without a gap, and one finish, which is the last."""
    server = serve()
    response = ask(server)
    assert response.headers["content-type"].startswith("text/event-stream")
    header, *told = events(response)
    assert header_from_json(header).params["breadth"] == 2
    read = [event_from_json(event) for event in told]
    assert [event.seq for event in read] == list(range(1, len(read) + 1))
    assert [at for at, event in enumerate(read) if isinstance(event, Finished)] == [len(read) - 1]
    assert server.free_pages() == 256
    assert not server.daemon.state.runs


def test_the_same_seed_gives_the_same_tree(serve: Any, events: Callable[..., Any]) -> None:
    """Thoughts depend on the seed alone, not on what else runs."""
    server = serve()

    def texts() -> list[str]:
        return [event["text"] for event in events(ask(server)) if event.get("event") == "node_done" and "text" in event]

    first = texts()
    assert first
    assert first == texts()


def test_without_deltas_and_without_a_stream(serve: Any, events: Callable[..., Any]) -> None:
    """Pieces can be left out; a search that is not streamed answers with its result."""
    server = serve()
    told = events(ask(server))
    pieces: dict[str, str] = {}
    for event in told:
        if event.get("event") == "delta":
            pieces[event["node"]] = pieces.get(event["node"], "") + event["text"]
    assert pieces
    done = {event["node"]: event.get("text") for event in told if event.get("event") == "node_done"}
    assert pieces == {node: done[node] for node in pieces}
    assert not [event for event in events(ask(server, deltas=False)) if event.get("event") == "delta"]
    result = ask(server, stream=False).json()
    assert result["schema"] == "pie-mlx.tot-result/1"
    assert result["finish_reason"] == "answer"
    assert result["pages"]["free_after"] == result["pages"]["free_before"]


def test_a_search_that_cannot_fit_is_refused_with_its_numbers(serve: Any) -> None:
    """A pool too small for any path is a 400 that says need and total, streamed or not; other requests go on."""
    server = serve(pages=4)
    for stream in (True, False):
        response = ask(server, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "impossible")
        assert error["detail"]["need_pages"] > error["detail"]["total_pages"] == 4
    assert server.chat("a", max_tokens=2).status_code == 200


def test_a_search_that_starves_says_why(serve: Any, events: Callable[..., Any]) -> None:
    """Where others hold the pages, the finish carries the typed error; without a stream it is a 503."""
    server = serve(pages=24, engine={"stall_timeout_s": 0.3, "prefix_cache": False})
    with server.engine.context(list(range(97, 107)) * 20, name="holder") as holder:
        holder.prefill().result()
        holder.pin()
        told = events(ask(server))
        whole = ask(server, stream=False)
    assert [event.get("event") for event in told].count("finish") == 1
    assert told[-1]["reason"] == "starved"
    for error in (told[-1]["failure"], whole.json()["error"]):
        assert error["code"] == "starved"
        assert error["detail"]["total_pages"] == 24
        assert error["detail"]["need_pages"] > error["detail"]["free_pages"]
        assert "holder (context 1)" in [one["name"] for one in error["detail"]["holders"]]
    assert whole.status_code == 503
    assert int(whole.headers["retry-after"]) > 0
    assert events(ask(server))[-1]["reason"] == "answer"


@pytest.mark.parametrize(
    "fields",
    [
        {"question": ""},
        {"task": "evil.py:Task"},
        {"task": "/etc/passwd:Task"},
        {"params": {"breadth": 10**9}},
        {"params": {"breadth": 0}},
        {"params": {"beam": 65}},
        {"params": {"max_tokens": 10**9}},
        {"params": {"no_such": 1}},
        {"params": {"temperature": "hot"}},
        {"params": {"strategy": "luck"}},
        {"params": []},
        {"task": "game24", "question": "1 2"},
        {"task": "game24", "question": None, "split": "no such"},
        {"budget": 3},
        {"model": "other"},
    ],
)
def test_wrong_searches_are_refused_before_anything_runs(serve: Any, fields: dict[str, Any]) -> None:
    """Wrong tasks (files above all), parameters and limits are typed 4xx."""
    server = serve()
    response = ask(server, **fields)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["code"]
    assert server.engine.readings().counters.get("submitted", 0) == 0


class Live:
    """A search that is read while it runs, on a thread of its own."""

    def __init__(self, server: Any, **fields: Any) -> None:
        self.server = server
        self.events: list[dict[str, Any]] = []
        self.leave = threading.Event()
        self._fields = fields
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        server.wait_until(lambda: any(event.get("event") == "node_done" for event in self.events))

    def _read(self) -> None:
        body = {"question": "why?", **self._fields}
        with httpx2.stream("POST", f"{self.server.url}/v1/tot", json=body, timeout=60) as response:
            for line in self._lines(response):
                self.events.append(json.loads(line.removeprefix("data: ")))

    def _lines(self, response: Any) -> Iterator[str]:
        for line in response.iter_lines():
            if self.leave.is_set():
                return
            if line.startswith("data: "):
                yield line

    def steer(self, verb: str, **fields: Any) -> httpx2.Response:
        """Steer the run."""
        response: httpx2.Response = self.server.http.post(f"/v1/tot/{self.events[0]['run']}/{verb}", json=fields)
        return response

    def kinds(self) -> list[str]:
        """Return the kinds of what was told so far."""
        return [event.get("event", "header") for event in self.events]

    def end(self) -> None:
        """Wait for the stream's end."""
        self._thread.join(30)
        assert not self._thread.is_alive()


LONG = {"breadth": 2, "beam": 2, "depth": 30, "max_tokens": 60, "answer_tokens": 60, "seed": 1}


def test_a_run_is_steered_while_it_runs(serve: Any, backend: Any) -> None:
    """Pause, insert, lock, prune and accept are told in the stream, in the run's own time."""
    server = serve(backend=backend(pause_s=0.002))
    live = Live(server, params=LONG)
    assert live.steer("pause").json()["accepted"] is True
    server.wait_until(lambda: "pause" in live.kinds())
    assert live.steer("insert", node="0", text="a thought by hand").status_code == 200
    server.wait_until(lambda: "insert" in live.kinds())
    inserted = next(event["node"] for event in live.events if event.get("event") == "insert")
    assert live.steer("lock", node=inserted).status_code == 200
    server.wait_until(lambda: "lock" in live.kinds())
    for verb, fields in (("prune", {}), ("prune", {"node": "9.9.9"}), ("edit", {"node": inserted}), ("fly", {})):
        assert live.steer(verb, **fields).status_code in (400, 404)
    assert live.steer("resume").status_code == 200
    assert live.steer("accept", node=inserted).status_code == 200
    live.end()
    assert live.kinds().count("finish") == 1
    assert live.events[-1]["event"] == "finish"
    assert live.steer("pause").status_code == 404
    assert server.free_pages() == 256


def test_cancelling_a_run_finishes_it(serve: Any, backend: Any) -> None:
    """The verb cancel ends a run with a finish that says so."""
    server = serve(backend=backend(pause_s=0.002))
    live = Live(server, params=LONG)
    assert live.steer("cancel").status_code == 200
    live.end()
    assert live.events[-1]["reason"] == "cancelled"


def test_a_reader_that_leaves_ends_its_run(serve: Any, backend: Any) -> None:
    """When the stream's connection closes, paused or not, the run ends and its pages are free."""
    server = serve(backend=backend(pause_s=0.002))
    for pauses in (False, True):
        live = Live(server, params=LONG)
        if pauses:
            live.steer("pause")
        live.leave.set()
        if pauses:
            # Nothing more is told: the reader only notices that it is to leave when something is.
            live.steer("step")
        server.wait_until(lambda: not server.daemon.state.runs)
        assert server.free_pages() == 256


def test_a_deadline_ends_a_run(serve: Any, backend: Any, events: Callable[..., Any]) -> None:
    """Over its deadline a run is cancelled; the stream ends with the error and has no finish besides."""
    server = serve(backend=backend(pause_s=0.02))
    told = events(ask(server, params=LONG, deadline_s=0.3))
    assert told[-1]["error"]["code"] == "deadline", told[-1]
    assert not [event for event in told if event.get("event") == "finish"]
    assert server.free_pages() == 256
