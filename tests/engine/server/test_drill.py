"""The drill: a small pool, many clients, searches among them, some leaving at random. Nothing hangs or leaks."""

from __future__ import annotations

import collections
import json
import os
import random
import threading
import time
from typing import Any

import httpx2
import pytest

CLIENTS = 16
CODES = {"queue_full", "starved", "hog", "impossible", "deadlock", "evicted", "deadline"}
CHAT, TOT = "/v1/chat/completions", "/v1/tot"


class Drill:
    """What the clients of one drill met."""

    def __init__(self, server: Any, seconds: float) -> None:
        self.server = server
        self.end_s = time.monotonic() + seconds
        self.met: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def run(self) -> None:
        """Let every client do its rounds."""
        threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(1.0, self.end_s - time.monotonic()) + 60)
        assert not [thread for thread in threads if thread.is_alive()], "a client hangs"

    def _client(self, number: int) -> None:
        """Ask again and again; every second client searches, and one ask in three is left in the middle."""
        draw = random.Random(number)
        with httpx2.Client(base_url=self.server.url, timeout=60) as client:
            while time.monotonic() < self.end_s:
                leaves = draw.random() < 1 / 3
                try:
                    self._ask(client, number, draw, leaves=leaves)
                except (AssertionError, httpx2.HTTPError, ValueError, KeyError) as error:
                    self.faults.append(f"client {number}: {type(error).__name__}: {error}")

    def _ask(self, client: Any, number: int, draw: random.Random, *, leaves: bool) -> None:
        """Ask once, to the end or not."""
        path, body = (TOT, self._search(draw)) if number % 2 else (CHAT, self._chat(draw))
        body["user"] = f"client {number}"
        with client.stream("POST", path, json=body) as response:
            if leaves:
                next(response.iter_bytes(), b"")
                self.met["left"] += 1
                return
            text = response.read().decode()
        assert response.status_code in (200, 400, 429, 503), response.status_code
        if response.status_code != 200:
            self._refused(json.loads(text)["error"], response)
        elif "stream" in body and not body["stream"]:
            answer = json.loads(text)
            assert all(choice["finish_reason"] for choice in answer["choices"])
            assert all(choice["message"]["content"] for choice in answer["choices"]), "a blank answer"
            self.met["answered"] += 1
        else:
            self._streamed(path, text)

    def _refused(self, error: dict[str, Any], response: Any) -> None:
        """See that a refusal is typed, and says when to come again."""
        assert error["code"] in CODES, error
        if response.status_code in (429, 503):
            assert int(response.headers["retry-after"]) > 0
            time.sleep(0.05)
        self.met[error["code"]] += 1

    def _streamed(self, path: str, text: str) -> None:
        """See that a stream has one end."""
        told = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        if path == TOT:
            kinds = [json.loads(line).get("event", "header") for line in told]
            assert kinds.count("finish") == 1
            assert kinds[-1] == "finish"
            reason = json.loads(told[-1])["reason"]
            assert reason in ("answer", "unsolved", "budget", "starved"), told[-1]
            self.met[f"search {reason}"] += 1
            return
        assert told[-1] == "[DONE]"
        last = json.loads(told[-2])
        if "error" in last:
            assert last["error"]["code"] in CODES, last
            self.met[f"mid-stream {last['error']['code']}"] += 1
        else:
            assert last["choices"][0]["finish_reason"] in ("stop", "length")
            self.met["streamed"] += 1

    def _chat(self, draw: random.Random) -> dict[str, Any]:
        content = "words and more words " * draw.randint(1, 12)
        messages = [{"role": "user", "content": content}]
        stream = draw.random() < 0.5
        return {
            "messages": messages,
            "max_tokens": draw.randint(4, 120),
            "n": draw.choice((1, 1, 1, 3)),
            "stream": stream,
        }

    def _search(self, draw: random.Random) -> dict[str, Any]:
        params = {"breadth": 3, "beam": 2, "depth": draw.randint(1, 3), "max_tokens": 24, "answer_tokens": 16}
        return {"question": "why is it so?", "params": {**params, "seed": draw.randint(0, 99)}, "deltas": False}


def drill(serve: Any, seconds: float) -> None:
    """Run a drill and see that all is as before."""
    server = serve(
        pages=96, engine={"max_batch": 8, "stall_timeout_s": 5.0}, max_running=12, max_waiting=6, max_searches=6
    )
    run = Drill(server, seconds)
    run.run()
    assert not run.faults, run.faults[:5]
    assert run.met["left"]
    assert run.met["answered"] or run.met["streamed"]
    assert any(what.startswith("search") for what in run.met)
    assert server.free_pages() == 96
    server.engine.check()
    state = server.daemon.state
    server.wait_until(lambda: not state.exchanges)
    assert (state.gate.num_inside, state.gate.num_waiting) == (0, 0)
    assert (state.search_gate.num_inside, state.search_gate.num_waiting) == (0, 0)
    assert not state.runs
    assert server.chat().status_code == 200


@pytest.mark.slow
def test_a_short_drill(serve: Any) -> None:
    """Fifteen seconds of it."""
    drill(serve, 15.0)


@pytest.mark.slow
@pytest.mark.skipif("PIE_DRILL_S" not in os.environ, reason="make drill runs it, as long as it is told to")
def test_a_long_drill(serve: Any) -> None:
    """As long as the variable says."""
    drill(serve, float(os.environ["PIE_DRILL_S"]))
