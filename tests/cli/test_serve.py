"""``pie-mlx serve`` and ``pie-mlx top``: what they refuse, and what top shows of a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pie_mlx.cli.commands.serve import ServerFlags, _server_settings
from pie_mlx.cli.main import invoke
from pie_mlx.config import Settings
from pie_mlx.errors import UsageError

READING: dict[str, Any] = {
    "schema": "pie-mlx.pages/1",
    "model": "tiny\x1b[31m",
    "is_alive": True,
    "step_s": None,
    "page_size": 16,
    "page_bytes": 128,
    "pages": {"total": 64, "free": 40, "held": 24, "private": 10, "shared": 8, "cached": 6, "sharing_ratio": 1.5},
    "contexts": [
        {
            "id": 3,
            "name": "chat",
            "num_tokens": 90,
            "num_pages": 6,
            "num_private": 2,
            "num_evicted_tokens": 0,
            "idle_s": 1.0,
        }
    ],
    "requests": [
        {"id": 9, "context": 3, "phase": "decoding", "completion_tokens": 5, "age_s": 2.0, "waits_for": "3 pages short"}
    ],
    "counters": {},
    "admission": {"completions": {"inside": 1, "waiting": 2}, "searches": {"inside": 0, "waiting": 0}},
    "runs": [],
    "alarms": [{"level": "warning", "kind": "starved", "message": "nothing moves", "request": 9}],
}


class _Fixed(BaseHTTPRequestHandler):
    """Answers every path with one body."""

    body: ClassVar[bytes] = b""
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Return the address of a server that answers with a fixed reading."""
    _Fixed.body, _Fixed.status = json.dumps(READING).encode(), 200
    server = HTTPServer(("127.0.0.1", 0), _Fixed)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_top_shows_pages_contexts_requests_and_alarms(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe, top shows one look: what holds pages, what waits and why; controls in names are harmless."""
    assert invoke(["top", "--url", address]) == 0
    out = capsys.readouterr().out
    for text in ("24/64 held", "shared 8", "sharing 1.50", "chat", "decoding", "3 pages short", "nothing moves"):
        assert text in out
    assert "1 inside 2 waiting" in out
    assert "\x1b" not in out


def test_top_as_json_is_the_servers_reading(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints the reading as it came."""
    assert invoke(["top", "--url", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pages"]["total"] == 64


@pytest.mark.parametrize(
    ("status", "body", "hint"),
    [(401, b"{}", "api-key"), (200, b"<html>", "not a pie-mlx server"), (200, b"{}", "not a pie-mlx server")],
)
def test_top_says_what_answers_instead(
    address: str, status: int, body: bytes, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no server of ours is a usage error that says so."""
    _Fixed.status, _Fixed.body = status, body
    assert invoke(["top", "--url", address]) == 2
    assert hint in capsys.readouterr().err


def test_top_says_that_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no server is, the error names the command that starts one."""
    assert invoke(["top", "--url", "http://127.0.0.1:1"]) == 2
    assert "pie-mlx serve" in capsys.readouterr().err
    assert invoke(["top", "--url", "file:///etc/passwd"]) == 2


@pytest.mark.parametrize(
    "flags",
    [
        ServerFlags(host="0.0.0.0"),
        ServerFlags(port=70_000),
        ServerFlags(api_key="short"),
        ServerFlags(api_key="long enough", api_key_file=Path("key")),
        ServerFlags(api_key_file=Path("no/such/file")),
        ServerFlags(request_timeout=0.0),
        ServerFlags(request_timeout=float("nan")),
        ServerFlags(max_running=0),
    ],
)
def test_flags_that_cannot_serve_are_usage_errors(flags: ServerFlags) -> None:
    """Each is refused before a model is loaded."""
    with pytest.raises(UsageError):
        _server_settings(flags, Settings())


def test_the_key_comes_from_its_file(tmp_path: Path) -> None:
    """A key file's line end is not part of the key, and the key is not shown."""
    (tmp_path / "key").write_text("correct-horse\n", encoding="utf-8")
    chosen = _server_settings(ServerFlags(host="0.0.0.0", api_key_file=tmp_path / "key"), Settings())
    assert chosen.api_key == "correct-horse"
    assert "horse" not in repr(chosen)


def test_configured_sampling_is_the_servers_default() -> None:
    """What the configuration says of sampling is what a request gets that does not say."""
    chosen = _server_settings(ServerFlags(), Settings(temp=0.5, top_p=0.9, max_tokens=77))
    assert (chosen.temperature, chosen.top_p, chosen.default_max_tokens) == (0.5, 0.9, 77)
    assert _server_settings(ServerFlags(), Settings()).temperature == 1.0


def test_a_taken_port_is_a_usage_error(address: str) -> None:
    """The daemon says that it cannot listen, with a way out."""
    from pie_mlx.server.daemon import _bind
    from pie_mlx.server.settings import ServerSettings

    with pytest.raises(UsageError, match="cannot listen"):
        _bind(ServerSettings(port=int(address.rpartition(":")[2])))
