"""Pulling at a terminal, from a small hub on this machine: the bar, an interrupt, and going on."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_HEADER = b'{"x": {"dtype": "U8", "shape": [29999918], "data_offsets": [0, 29999918]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + os.urandom(30_000_000 - 8 - len(_HEADER))
HALF = 2 * 10 * 1024 * 1024
"""Where the hub waits; the client writes in pieces of ten MiB."""


@dataclass
class _Hub:
    """The repository ``me/model``: its weights come to the half, and then wait until they may go on."""

    files: dict[str, bytes]
    go_on: threading.Event = field(default_factory=threading.Event)
    ranges: list[str | None] = field(default_factory=list)
    url: str = ""
    spoiled: bool = False


class _Handler(BaseHTTPRequestHandler):
    hub: _Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        files = self.hub.files
        if self.path.startswith("/api/models/me/model/tree/"):
            self._send(json.dumps([_entry(name, content) for name, content in files.items()]).encode(), {}, body=body)
        elif self.path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in files]
            self._send(json.dumps({"id": "me/model", "sha": COMMIT, "siblings": siblings}).encode(), {}, body=body)
        else:
            self._file(files[self.path.rsplit("/", 1)[1]], body=body)

    def _file(self, content: bytes, *, body: bool) -> None:
        headers = {
            "X-Repo-Commit": COMMIT,
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        start = 0
        if body and content is WEIGHTS:
            asked = self.headers.get("Range")
            self.hub.ranges.append(asked)
            start = int((asked or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = bytes(len(content)) if self.hub.spoiled else content
        self._send(content[start:], headers, body=body)

    def _send(self, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(206 if headers.get("Content-Range", "bytes 0").split()[1][0] != "0" else 200)
        for name, value in {**headers, "Content-Length": str(len(content)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if not body:
            return
        try:
            self.wfile.write(content[:HALF])
            if len(content) > HALF:
                assert self.hub.go_on.wait(60)
                self.wfile.write(content[HALF:])
        except (BrokenPipeError, ConnectionResetError):
            return  # the client was interrupted


def _entry(name: str, content: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"type": "file", "path": name, "size": len(content), "oid": digest}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_Hub]:
    """Run the hub, and let the program that the test starts ask it."""
    state = _Hub({"config.json": b'{"model_type": "llama"}', "model.safetensors": WEIGHTS})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": state}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("PIE_MLX_CACHE_DIR", str(tmp_path))
    yield state
    state.go_on.set()
    server.shutdown()
    server.server_close()


class _Pull:
    """``pie-mlx pull`` with its stderr at a terminal."""

    def __init__(self) -> None:
        """Start it."""
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "pie_mlx", "pull", "hf:me/model"]
        self.process = subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        self.talk = ""

    def read_until(self, text: str) -> None:
        """Read the terminal until ``text`` came, or the program ended."""
        while text not in self.talk:
            try:
                self.talk += os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                return

    def end(self) -> int:
        """Read the rest; return the exit code."""
        self.read_until("\0")
        os.close(self._master)
        self.process.communicate(timeout=60)
        return self.process.returncode


def test_an_interrupted_pull_says_so_and_goes_on_where_it_was(hub: _Hub) -> None:
    """Ctrl-C in a file of any size is answered at once, and no byte that is here is asked for again."""
    first = _Pull()
    first.read_until("21.0/30.0 MB")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130, first.talk
    assert "stopped; pie-mlx pull hf:me/model goes on from here" in first.talk
    assert "Traceback" not in first.talk
    hub.go_on.set()
    second = _Pull()
    code = second.end()
    assert hub.ranges == [None, "bytes=20971520-"]
    # The repository has no tokenizer: that is found when all is here, and its files stay.
    assert (code, "the model has no tokenizer" in second.talk) == (3, True), second.talk


def test_weights_that_are_not_what_was_announced_are_removed(hub: _Hub) -> None:
    """One sentence that names the file, with the command that fetches it anew."""
    hub.spoiled = True
    hub.go_on.set()
    pull = _Pull()
    assert pull.end() == 3
    assert "model.safetensors is not the file the hub announced; it was removed" in pull.talk.replace("\r\n", " ")
    assert pull.talk.endswith(" pie-mlx pull hf:me/model\r\n")
