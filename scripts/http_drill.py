# ruff: noqa: INP001 a script, not a module
"""Sixteen clients on a small pool: half of them search, and a third of what they ask is left in the middle.

Started by hand, it drills ``pie-mlx serve`` with the starter model in a process of its own, and writes what was met.
Whatever happens, every answer is whole or a typed error, nothing hangs, no answer is blank, every page comes back,
and the server's memory stays where it was. Exits 1 where one of these fails. The tests drill the fake device with
the same clients.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

CLIENTS = 16
CODES = {"queue_full", "starved", "hog", "impossible", "deadlock", "evicted", "deadline"}
ENDS = {"answer", "unsolved", "budget", "starved"}
CHAT, TOT = "/v1/chat/completions", "/v1/tot"
_HANG_S = 180
"""Longer than the drilled server lets a request take."""
_SAMPLES = 200


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process while it was drilled (MiB): early in the drill and at its end."""

    early_mib: float
    late_mib: float

    @property
    def is_flat(self) -> bool:
        """Whether the end is no higher than the beginning, but for what an allocator keeps."""
        return self.late_mib <= 1.05 * self.early_mib + 8


class Drill:
    """What the clients of one drill met. ``pid`` is the server's process, whose memory is watched."""

    def __init__(self, url: str, seconds: float, pid: int) -> None:
        """Aim at a server; :meth:`run` begins."""
        self.met: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self._url = url
        self._seconds = seconds
        self._pid = pid
        self._end_s = 0.0
        self._resident: list[float] = []

    def run(self) -> None:
        """Let every client do its rounds; note who hangs."""
        self._end_s = time.monotonic() + self._seconds
        threads = [threading.Thread(target=self._client, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while time.monotonic() < self._end_s:
            time.sleep(self._seconds / _SAMPLES)
            self._resident.append(resident_mib(self._pid))
        for thread in threads:
            thread.join(_HANG_S)
        hanging = sum(thread.is_alive() for thread in threads)
        if hanging:
            self.faults.append(f"{hanging} clients hang")

    @property
    def memory(self) -> Memory:
        """The memory in the second and in the last quarter of the drill."""
        quarter = len(self._resident) // 4
        early, late = self._resident[quarter : 2 * quarter], self._resident[-quarter:]
        return Memory(statistics.median(early), statistics.median(late))

    def _client(self, number: int) -> None:
        """Ask again and again; every second client searches, and one ask in three is left in the middle."""
        draw = random.Random(number)  # noqa: S311  a drill repeats, it keeps no secret
        with httpx2.Client(base_url=self._url, timeout=_HANG_S) as client:
            while time.monotonic() < self._end_s:
                leaves = draw.random() < 1 / 3
                try:
                    self._ask(client, number, draw, leaves=leaves)
                except (AssertionError, httpx2.HTTPError, ValueError, KeyError) as error:
                    self.faults.append(f"client {number}: {type(error).__name__}: {error}")

    def _ask(self, client: httpx2.Client, number: int, draw: random.Random, *, leaves: bool) -> None:
        """Ask once, to the end or not."""
        path, body = (TOT, _search(draw)) if number % 2 else (CHAT, _chat(draw))
        body["user"] = f"client {number}"
        with client.stream("POST", path, json=body) as response:
            if leaves:
                next(response.iter_bytes(), b"")
                self.met["left"] += 1
                return
            text = response.read().decode()
        assert response.status_code in (200, 400, 429, 503, 504), response.status_code
        if response.status_code != 200:
            self._refused(json.loads(text)["error"], response)
        elif path == TOT:
            self._searched(text)
        elif body["stream"]:
            self._streamed(text)
        else:
            answer = json.loads(text)
            assert all(choice["finish_reason"] for choice in answer["choices"])
            assert all(choice["message"]["content"] for choice in answer["choices"]), "a blank answer"
            self.met["answered"] += 1

    def _refused(self, error: dict[str, Any], response: httpx2.Response) -> None:
        """See that a refusal is typed, and says when to come again."""
        assert error["code"] in CODES, error
        if response.status_code in (429, 503):
            assert int(response.headers["retry-after"]) > 0
            time.sleep(0.05)
        self.met[error["code"]] += 1

    def _searched(self, text: str) -> None:
        """See that a search has exactly one end, and that a starved one says why."""
        told = [json.loads(line) for line in _data(text) if line != "[DONE]"]
        if "error" in told[-1] and "event" not in told[-1]:
            assert told[-1]["error"]["code"] in CODES, told[-1]
            self.met[f"search ended by {told[-1]['error']['code']}"] += 1
            return
        kinds = [event.get("event", "header") for event in told]
        assert kinds.count("finish") == 1, kinds[-3:]
        assert kinds[-1] == "finish", kinds[-3:]
        reason = told[-1]["reason"]
        assert reason in ENDS, told[-1]
        self.met[f"search {reason}"] += 1

    def _streamed(self, text: str) -> None:
        """See that a stream ends properly, with text or with a typed error."""
        *events, last = _data(text)
        assert last == "[DONE]", last
        told = [json.loads(line) for line in events]
        if "error" in told[-1]:
            assert told[-1]["error"]["code"] in CODES, told[-1]
            self.met[f"mid-stream {told[-1]['error']['code']}"] += 1
            return
        assert told[-1]["choices"][0]["finish_reason"] in ("stop", "length")
        assert any(event["choices"][0]["delta"].get("content") for event in told), "a blank stream"
        self.met["streamed"] += 1


def _data(text: str) -> list[str]:
    """Return the data of server-sent events."""
    return [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]


def _chat(draw: random.Random) -> dict[str, Any]:
    """Return the body of a chat completion; one in twenty is longer than a small pool can hold."""
    repeats = 150 if draw.random() < 1 / 20 else draw.randint(1, 12)
    return {
        "messages": [{"role": "user", "content": "words and more words " * repeats}],
        "max_tokens": draw.randint(4, 120),
        "n": draw.choice((1, 1, 1, 3)),
        "stream": draw.random() < 0.5,
    }


def _search(draw: random.Random) -> dict[str, Any]:
    """Return the body of a search."""
    params = {"breadth": 3, "beam": 2, "depth": draw.randint(1, 3), "max_tokens": 24, "answer_tokens": 16}
    return {"question": "why is it so?", "params": {**params, "seed": draw.randint(0, 99)}, "deltas": False}


def resident_mib(pid: int) -> float:
    """Return a process' resident memory."""
    command = ["/bin/ps", "-o", "rss=", "-p", str(pid)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) / 1024


@contextmanager
def served(model: str, pages: int) -> Iterator[tuple[str, int]]:
    """Serve a model in a process of its own; yield its address and process id, and drain it at the end."""
    flags = ["--model", model, "--pool-pages", str(pages), "--port", "0", "--json", "--max-waiting", "6"]
    flags += ["--request-timeout", "120"]
    command = [sys.executable, "-m", "pie_mlx", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        try:
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def main() -> int:
    """Drill a server; return 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pages", type=int, default=48)
    flags = parser.parse_args()
    with served(flags.model, flags.pages) as (url, pid):
        httpx2.post(url + CHAT, json={"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}, timeout=_HANG_S)
        drill = Drill(url, flags.seconds, pid)
        drill.run()
        pages = _idle_pages(url)
    if pages["free"] + pages["cached"] != pages["total"]:
        drill.faults.append(f"pages are missing: {pages}")
    if not drill.memory.is_flat:
        drill.faults.append("memory grew")
    report = {"seconds": flags.seconds, "met": dict(drill.met.most_common()), "pages": pages}
    sys.stdout.write(json.dumps({**report, "memory": vars(drill.memory), "faults": drill.faults}, indent=2) + "\n")
    return 1 if drill.faults else 0


def _idle_pages(url: str) -> dict[str, Any]:
    """Return the pool once no context is left."""
    end_s = time.monotonic() + _HANG_S
    while (facts := httpx2.get(f"{url}/v1/pages", timeout=_HANG_S).json())["contexts"] and time.monotonic() < end_s:
        time.sleep(0.1)
    pages: dict[str, Any] = facts["pages"]
    return pages


if __name__ == "__main__":
    sys.exit(main())
