"""The end of a server, as a process: the first signal lets work finish, the second does not."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

SCRIPT = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("server_conftest", sys.argv[1])
parts = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = parts
spec.loader.exec_module(parts)
device = parts.LetterBackend(pause_s=0.02)
settings = parts.EngineSettings(pool_pages=256, page_size=16)
with parts.Engine.start(lambda: device, settings, parts.make_tokenizer()) as engine:
    daemon = parts.Daemon(engine, parts.ServerSettings(port=0, drain_timeout_s=float(sys.argv[2])))
    code = daemon.run(lambda: print(daemon.url, flush=True))
    if daemon.has_ended_at_once:
        os._exit(143)
sys.exit(code)
"""


class Process:
    """A server in a process of its own, and one stream that is being read."""

    def __init__(self, drain_s: float) -> None:
        here = str(Path(__file__).with_name("conftest.py"))
        root = str(Path(next(iter(_package_path()))).parent)
        command = [sys.executable, "-c", SCRIPT, here, str(drain_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.text = ""
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def begin(self, max_tokens: int) -> None:
        """Begin to read a stream."""
        self._max_tokens = max_tokens
        self._thread.start()
        assert self._begun.wait(20)

    def _read(self) -> None:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": self._max_tokens, "stream": True}
        with httpx2.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=60) as response:
            for text in response.iter_text():
                self.text += text
                self._begun.set()

    def end(self) -> tuple[int, list[Any]]:
        """Wait for the end; return the exit code and the stream's events."""
        code = self.process.wait(30)
        self._thread.join(10)
        lines = [line[6:] for line in self.text.split("\n") if line.startswith("data: {")]
        return code, [json.loads(line) for line in lines]

    def close(self) -> None:
        """Kill what is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _package_path() -> list[str]:
    """Return the folder of the package: the process imports the same code."""
    spec = importlib.util.find_spec("pie_mlx")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return list(spec.submodule_search_locations)


@pytest.fixture
def served() -> Iterator[list[Process]]:
    """Return a list for the test's processes; each is gone afterwards."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.close()


def start(served: list[Process], drain_s: float) -> Process:
    """Start a process."""
    served.append(Process(drain_s))
    return served[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_work_finish(served: list[Process], number: int) -> None:
    """A stream that runs ends whole, new work is refused as draining, and the exit code is 0."""
    server = start(served, 20.0)
    server.begin(100)
    server.process.send_signal(number)
    refusals: set[tuple[int, str]] = set()
    with httpx2.Client(base_url=server.url, timeout=10) as client:
        while server.process.poll() is None and not refusals:
            response = client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": "b"}], "max_tokens": 1}
            )
            if response.status_code != 200:
                refusals.add((response.status_code, response.json()["error"]["code"]))
                assert client.get("/healthz").status_code == 503
    code, events = server.end()
    assert refusals == {(503, "draining")}
    assert code == 0
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert server.text.endswith("data: [DONE]\n\n")


def test_what_does_not_finish_in_time_gets_a_last_word(served: list[Process]) -> None:
    """Over the drain's time, a stream ends with the error, and the exit code is still 0."""
    server = start(served, 0.3)
    server.begin(4000)
    server.process.send_signal(signal.SIGTERM)
    code, events = server.end()
    assert code == 0
    assert events[-1]["error"]["code"] == "draining"
    assert server.text.endswith("data: [DONE]\n\n")


def test_the_second_signal_ends_at_once(served: list[Process]) -> None:
    """It does not wait for the work, which gets its last word all the same."""
    server = start(served, 600.0)
    server.begin(4000)
    server.process.send_signal(signal.SIGTERM)
    with httpx2.Client(base_url=server.url, timeout=10) as client:
        while client.get("/healthz").status_code == 200:
            pass
    server.process.send_signal(signal.SIGTERM)
    code, events = server.end()
    assert code == 143
    assert events[-1].get("error", {}).get("code") == "draining"
