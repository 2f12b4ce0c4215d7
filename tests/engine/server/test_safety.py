"""What a server refuses, and that it is unharmed afterwards: each refusal is typed and says nothing of the machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.errors import UsageError
from pie_mlx.server.settings import ServerSettings, is_loopback

MESSAGE = [{"role": "user", "content": "hi"}]
JSON = {"Content-Type": "application/json"}
CHAT = "/v1/chat/completions"

WRONG_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not json": b"{",
    "not an object": b"[1, 2]",
    "invalid utf-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "lone surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "nan": b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "a"}], "top_p": -Infinity}',
    "overflow": b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "digits": b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"9" * 5000 + b"}",
    "deep": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}

WRONG_FIELDS: dict[str, dict[str, Any]] = {
    "unknown": {"temprature": 1},
    "no messages": {"messages": []},
    "messages is text": {"messages": "hi"},
    "role": {"messages": [{"role": "wizard", "content": "a"}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    "content is a number": {"messages": [{"role": "user", "content": 5}]},
    "temperature is text": {"temperature": "hot"},
    "temperature is true": {"temperature": True},
    "temperature below": {"temperature": -0.1},
    "top_p above": {"top_p": 1.5},
    "top_p zero": {"top_p": 0},
    "min_p above": {"min_p": 2},
    "top_k below": {"top_k": -1},
    "n zero": {"n": 0},
    "n is a float": {"n": 1.5},
    "tokens zero": {"max_tokens": 0},
    "tokens enormous": {"max_tokens": 1_000_000_000},
    "tokens beyond 64 bits": {"max_tokens": 10**30},
    "stops": {"stop": [f"stop{at}" for at in range(10_000)]},
    "stop empty": {"stop": [""]},
    "stop long": {"stop": "x" * 5000},
    "seed beyond": {"seed": 1 << 70},
    "logprobs": {"top_logprobs": 3},
    "top logprobs": {"logprobs": True, "top_logprobs": 50},
    "bias": {"logit_bias": {"5": 100}},
    "penalty": {"frequency_penalty": 0.5},
    "format": {"response_format": {"type": "yaml"}},
    "format without schema": {"response_format": {"type": "json_schema"}},
    "tool name": {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    "two tools": {"tools": [{"type": "function", "function": {"name": "a"}}] * 2},
    "chosen tool": {"tool_choice": {"type": "function", "function": {"name": "a"}}},
    "required without tools": {"tool_choice": "required"},
    "deadline": {"deadline_s": 0},
}


def assert_typed(response: Any, *statuses: int) -> dict[str, Any]:
    """Assert that an answer is a typed error of one of the statuses, without a trace of the machine; return it."""
    assert response.status_code in statuses, (response.status_code, response.text[:300])
    error: dict[str, Any] = response.json()["error"]
    assert {"message", "type", "code", "param", "detail"} <= set(error)
    assert error["code"]
    for secret in ("Traceback", str(Path.home()), "site-packages", ".py", "/tmp"):
        assert secret not in response.text
    return error


def test_wrong_bodies_are_typed_and_harmless(serve: Any) -> None:
    """What is not JSON is a 400 that says so, and the server goes on."""
    server = serve()
    for name, raw in WRONG_BODIES.items():
        error = assert_typed(server.http.post(CHAT, content=raw, headers=JSON), 400)
        assert error["code"] == "invalid_request", name
    assert server.chat().status_code == 200


def test_wrong_fields_are_named(serve: Any) -> None:
    """A field that is wrong is a 400 whose param is the field."""
    server = serve()
    for name, fields in WRONG_FIELDS.items():
        body = {"messages": MESSAGE, "max_tokens": 4, **fields}
        error = assert_typed(server.http.post(CHAT, json=body), 400)
        assert error["param"], name
        assert error["param"].split(".")[0] in (*fields, "max_tokens", "tool_choice"), (name, error)
    assert server.chat().status_code == 200
    assert server.free_pages() == 256


def test_limits_on_size_and_number(serve: Any) -> None:
    """Bodies, messages, choices and headers have limits, each with its own status."""
    server = serve(max_body_bytes=20_000, max_messages=10, max_choices=4, max_header_bytes=4096)
    long = {"messages": [{"role": "user", "content": "x" * 60_000}]}
    assert_typed(server.http.post(CHAT, json=long), 413)
    assert_typed(server.http.post(CHAT, json={"messages": MESSAGE * 11}), 413)
    assert_typed(server.chat(n=5), 413)
    assert_typed(server.http.post("/v1/completions", json={"prompt": ["a"] * 3, "n": 2}), 413)
    assert_typed(server.http.get("/v1/models", headers={f"x-{at}": "1" for at in range(100)}), 431)
    assert_typed(server.http.get("/v1/models", headers={"x-long": "1" * 5000}), 431)
    assert server.chat().status_code == 200


def test_an_enormous_body_is_not_read_to_its_end(serve: Any) -> None:
    """A body far over the limit is refused, and memory does not hold it."""
    server = serve(max_body_bytes=1000)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\n".encode() + b"x" * 6000)
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    assert server.chat().status_code == 200


def test_only_json_is_read(serve: Any) -> None:
    """What a web page may send without asking (forms, plain text) is refused; no answer allows another origin."""
    server = serve()
    body = json.dumps({"messages": MESSAGE})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert_typed(server.http.post(CHAT, content=body, headers={"Content-Type": kind}), 415)
    assert_typed(server.http.post(CHAT, content=body, headers={**JSON, "Content-Encoding": "gzip"}), 415)
    response = server.chat()
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = server.http.options(CHAT, headers={"Origin": "http://evil.example"})
    assert_typed(preflight, 405)
    assert preflight.headers["allow"] == "POST"


def test_a_name_that_was_rebound_to_this_machine_is_refused(serve: Any) -> None:
    """A Host header that names another machine gets nothing."""
    server = serve()
    assert_typed(server.http.get("/v1/models", headers={"Host": "evil.example"}), 403)
    assert_typed(server.http.get("/v1/models", headers={"Host": "localhost.evil.example:80"}), 403)
    for host in ("localhost:80", "127.0.0.1", "[::1]:8080"):
        assert server.http.get("/v1/models", headers={"Host": host}).status_code == 200


def test_a_key_is_asked_of_everybody_but_the_health_probe(serve: Any) -> None:
    """Without the key, or with another one, nothing but health answers."""
    server = serve(api_key="correct-horse")
    for header in (None, "Bearer wrong-horse", "Bearer", "Basic correct-horse", "Bearer correct-horsé"):
        headers = {} if header is None else {"Authorization": header.encode()}
        for path in ("/v1/models", "/metrics", "/v1/pages", "/openapi.json", "/nothing"):
            assert_typed(server.http.get(path, headers=headers), 401)
        assert_typed(server.http.post(CHAT, json={"messages": MESSAGE}, headers=headers), 401)
    assert server.http.get("/healthz").status_code == 200
    good = {"Authorization": "Bearer correct-horse"}
    assert server.http.get("/v1/models", headers=good).status_code == 200


def _refused(server: Any, *, head: str, body: bytes) -> bytes:
    """Send a request's head without a key, its body when the answer is there, and return all that came."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\n{head}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"}"):
            answer += raw.recv(65536)
        for at in range(0, len(body), 1000):
            raw.sendall(body[at : at + 1000])
        assert raw.recv(100) == b"", "the connection is closed, and was not reset"
    return answer


def test_a_client_that_is_refused_before_its_body_gets_the_whole_answer(serve: Any) -> None:
    """The rest of the body is taken in, so that the connection is not reset under a client that still sends."""
    server = serve(api_key="correct-horse")
    body = json.dumps({"messages": MESSAGE}).encode().ljust(20_000)
    answer = _refused(server, head=f"Content-Type: application/json\r\nContent-Length: {len(body)}", body=body)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"\r\nconnection: close\r\n" in answer
    assert _refused(server, head="Content-Length: 9\r\nExpect: 100-continue", body=b"").startswith(b"HTTP/1.1 401")


def test_a_body_that_was_read_keeps_its_connection(serve: Any) -> None:
    """A wrong body is in nobody's way."""
    server = serve()
    response = server.http.post(CHAT, content=b"{", headers=JSON)
    assert_typed(response, 400)
    assert response.headers.get("connection") != "close"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_another_address_demands_a_key(host: str) -> None:
    """Listening where others can reach it is refused without a key."""
    with pytest.raises(UsageError, match="no key"):
        ServerSettings(host=host).check()
    ServerSettings(host=host, api_key="long enough").check()


def test_what_loopback_is() -> None:
    """Names and addresses that only this machine reaches."""
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "localhost.example", "")))


def test_paths_methods_and_models_that_are_not_there(serve: Any) -> None:
    """Wrong paths, methods, models and runs are typed."""
    server = serve()
    assert_typed(server.http.get("/v2/models"), 404)
    assert_typed(server.http.get("/v1/models/"), 404)
    assert_typed(server.http.get(CHAT), 405)
    assert_typed(server.http.put(CHAT, json={}), 405)
    assert_typed(server.http.post("/v1/models", json={}), 405)
    assert assert_typed(server.chat(model="gpt-9"), 404)["code"] == "model_not_found"
    assert_typed(server.http.get("/v1/models/gpt-9"), 404)
    assert server.chat(model="fake").status_code == 200
    assert server.http.get("/v1/models").json()["data"][0]["id"] == "fake"
    assert_typed(server.http.post("/v1/tot/tot-0/pause", json={}), 404)


def test_a_fault_of_ours_shows_nothing_of_itself(
    serve: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody foresaw is a typed 500 without its text; the log has the traceback."""
    server = serve()
    secret = "/home/somebody/secret.py"

    def fail(*_args: Any, **_fields: Any) -> None:
        raise RuntimeError(secret)

    monkeypatch.setattr(server.daemon.state.tokenizer, "chat", fail)
    response = server.chat()
    assert assert_typed(response, 500)["code"] == "internal"
    assert secret not in response.text
    assert secret in caplog.text


def test_prompts_are_logged_only_when_asked(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line for each exchange, and no prompt in it unless the settings say so."""
    caplog.set_level("INFO", "pie_mlx.server")
    quiet, chatty = serve(), serve(logs_prompts=True)
    quiet.chat("my secret question")
    quiet.http.post(CHAT, json={"messages": "my secret question"})
    quiet.http.post("/v1/tot", json={"question": "my secret question", "params": {"depth": 1, "max_tokens": 2}})
    quiet.wait_until(lambda: caplog.text.count("POST") >= 3)
    assert "secret" not in caplog.text
    chatty.chat("my secret question")
    chatty.wait_until(lambda: "secret question" in caplog.text)


def test_a_line_break_cannot_forge_a_line_of_the_log(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A path is logged with its controls escaped."""
    caplog.set_level("INFO", "pie_mlx.server")
    server = serve()
    server.http.get("/v1/%0d%0a1.2.3.4 forged")
    server.wait_until(lambda: "forged" in caplog.text)
    assert all("\n" not in record.getMessage() for record in caplog.records)
