"""A server under pressure: refusals with numbers, queues, deadlines, clients that leave, and engines that die."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from pie_mlx.backend.fake import Faults

CHAT = "/v1/chat/completions"


def body(content: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return the body of a chat completion."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}


def test_what_can_never_fit_is_refused_with_its_numbers(serve: Any) -> None:
    """A prompt larger than the pool is a 400 that says need and total; others go on."""
    server = serve(pages=16)
    response = server.chat("x" * 1000)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "impossible")
    assert error["detail"]["total_pages"] == 16
    assert error["detail"]["need_pages"] > 16
    assert server.chat().status_code == 200


def test_too_long_a_prompt_is_no_memory_problem(serve: Any) -> None:
    """A prompt beyond the model's context has a code of its own."""
    response = serve(pages=1024).chat("x" * 5000)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_too_long")


def test_a_starved_request_may_come_again(serve: Any, events: Callable[..., Any]) -> None:
    """Where pinned pages stand in the way, the answer is a typed 503 with Retry-After, or a stream's last event."""
    server = serve(pages=16, engine={"stall_timeout_s": 0.3, "prefix_cache": False})
    with server.engine.context(list(range(97, 107)) * 9, name="holder") as holder:
        holder.prefill().result()
        holder.pin()
        response = server.chat(max_tokens=400)
        stream = server.chat(max_tokens=400, stream=True)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "starved")
    assert int(response.headers["retry-after"]) > 0
    assert error["detail"]["total_pages"] == 16
    assert "holder (context 1)" in [one["name"] for one in error["detail"]["holders"]]
    assert events(stream)[-1]["error"]["code"] == "starved"
    assert server.chat().status_code == 200


def test_a_full_queue_refuses_at_once(serve: Any, backend: Any) -> None:
    """With one place and one that waits, the third is a 429 that says when to come again."""
    server = serve(backend=backend(pause_s=0.02), max_running=1, max_waiting=1)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.chat, max_tokens=50, user=f"u{at}") for at in range(2)]
        gate = server.daemon.state.gate
        server.wait_until(lambda: (gate.num_inside, gate.num_waiting) == (1, 1))
        refusal = server.chat(user="u2")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (429, "queue_full")
        assert int(refusal.headers["retry-after"]) > 0
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_a_deadline_ends_a_request_and_frees_its_pages(serve: Any, backend: Any, events: Callable[..., Any]) -> None:
    """Over its deadline a request is a typed 504; a stream ends with it as its last event."""
    server = serve(backend=backend(pause_s=0.01))
    late = server.chat(max_tokens=2000, deadline_s=0.2)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
    stream = server.chat(max_tokens=2000, deadline_s=0.3, stream=True)
    assert stream.status_code == 200
    assert events(stream)[-1]["error"]["code"] == "deadline"
    assert stream.text.endswith("data: [DONE]\n\n")
    assert server.free_pages() == 256


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_request_along(serve: Any, backend: Any, stream: bool) -> None:
    """When the connection closes, the request is cancelled, its pages are free, and steps stop."""
    device = backend(pause_s=0.01)
    server = serve(backend=device)
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        if stream:
            with client.stream("POST", CHAT, json=body(max_tokens=3000, stream=True, n=2)) as response:
                next(response.iter_bytes())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                client.post(CHAT, json=body(max_tokens=3000), timeout=0.3)
    server.wait_until(lambda: not server.engine.readings().contexts)
    steps = server.engine.readings().counters["steps"]
    assert server.free_pages() == 256
    assert server.engine.readings().counters["steps"] - steps <= 1
    assert server.engine.readings().counters["cancelled"] >= 1
    assert server.chat().status_code == 200


def test_a_client_that_leaves_while_it_waits_gives_up_its_turn(serve: Any, backend: Any) -> None:
    """A waiter that has gone is not let in, and holds no place."""
    server = serve(backend=backend(pause_s=0.01), max_running=1, max_waiting=4)
    gate = server.daemon.state.gate
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.chat, max_tokens=100)
        server.wait_until(lambda: gate.num_inside == 1)
        with httpx2.Client(base_url=server.url) as client, pytest.raises(httpx2.ReadTimeout):
            client.post(CHAT, json=body(), timeout=0.2)
        server.wait_until(lambda: gate.num_waiting == 0)
        assert running.result().status_code == 200
    server.wait_until(lambda: gate.num_inside == 0)


def test_a_slow_reader_delays_nobody(serve: Any) -> None:
    """A stream that is not read leaves other requests as they are, and ends whole when it is read at last."""
    server = serve(pages=512)
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        slow = body(max_tokens=3000, stream=True, logprobs=True, top_logprobs=20, deadline_s=60)
        with client.stream("POST", CHAT, json=slow) as response:
            chunks = response.iter_bytes()
            first = next(chunks)
            for _ in range(5):
                assert server.chat(max_tokens=20).status_code == 200
            text = first + b"".join(chunks)
    assert text.endswith(b"data: [DONE]\n\n")
    assert b'"finish_reason":"length"' in text


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_shows_that_it_lives_during_a_long_prefill(serve: Any, backend: Any, n: int) -> None:
    """While the prompt is computed a comment is sent now and then, whatever the number of answers."""
    server = serve(backend=backend(pause_s=0.1), engine={"prefill_chunk": 32}, heartbeat_s=0.15)
    response = server.chat("x" * 400, stream=True, n=n, max_tokens=2)
    assert response.text.startswith(": waiting\n\n")
    assert response.text.count('"finish_reason":"length"') == n
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("path", [CHAT, "/v1/tot"])
def test_a_stream_shows_that_it_lives_while_it_waits_for_its_turn(serve: Any, backend: Any, path: str) -> None:
    """In the queue too a comment is sent now and then, and the answer follows as ever."""
    server = serve(backend=backend(pause_s=0.02), max_running=1, max_searches=1, heartbeat_s=0.1)
    asked = body(stream=True) if path == CHAT else {"question": "why?", "params": {"breadth": 1, "depth": 1}}
    asked |= {"user": "a", "max_tokens": 60} if path == CHAT else {"user": "a"}
    with ThreadPoolExecutor(2) as pool:
        first, second = list(pool.map(lambda _: server.http.post(path, json=asked), range(2)))
    assert sum(one.text.startswith(": waiting\n\n") for one in (first, second)) == 1
    for one in (first, second):
        assert one.status_code == 200
        assert '"finish_reason":"length"' in one.text or '"event":"finish"' in one.text


def never_read(server: Any, path: str, asked: dict[str, Any]) -> socket.socket:
    """Send a request and return its connection, of which nothing is read and which buffers next to nothing."""
    raw = json.dumps(asked).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # What the server accepts has the buffer of its listening socket.
    server.daemon._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    connection.sendall(head.encode() + b"\r\n\r\n" + raw)
    return connection


def test_a_reader_that_never_reads_is_ended_by_its_deadline(serve: Any) -> None:
    """Its pages are free, its place is given back, and others were served meanwhile."""
    server = serve(pages=512)
    asked = body(max_tokens=3800, stream=True, logprobs=True, top_logprobs=20, deadline_s=2)
    with never_read(server, CHAT, asked):
        server.wait_until(lambda: server.daemon.state.gate.num_inside == 1)
        assert server.chat(max_tokens=20).status_code == 200
        server.wait_until(lambda: not server.daemon.state.exchanges)
        assert server.daemon.state.gate.num_inside == 0
        assert server.free_pages() == 512


def test_a_search_whose_reader_is_too_far_behind_is_ended(serve: Any) -> None:
    """Events do not pile up without end: over the limit the run is cancelled, typed, and its pages are free."""
    server = serve(max_unread_events=200)
    params = {"breadth": 4, "beam": 4, "depth": 30, "max_tokens": 60, "answer_tokens": 60}
    with never_read(server, "/v1/tot", {"question": "why?", "params": params, "deadline_s": 60}) as connection:
        state = server.daemon.state
        server.wait_until(lambda: server.engine.readings().contexts)
        server.wait_until(lambda: not server.engine.readings().contexts)
        text = b""
        while chunk := connection.recv(1 << 16):
            text += chunk
            if text.endswith(b"0\r\n\r\n"):
                break
    assert b'"code":"slow_reader"' in text
    assert b'"event":"finish"' not in text
    server.wait_until(lambda: not state.runs)


def test_a_failure_before_the_first_token_has_its_status(serve: Any, backend: Any) -> None:
    """A device that fails at once is a typed 503, streamed or not; the next request works."""
    device = backend(faults=Faults(fail=frozenset({0, 1})))
    server = serve(backend=device)
    for stream in (False, True):
        response = server.chat(stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "device_failed")
    assert server.chat().status_code == 200


def test_a_failure_in_the_middle_is_the_last_event(serve: Any, backend: Any, events: Callable[..., Any]) -> None:
    """A stream that fails ends with an error event and its proper end, not with a cut connection."""
    device = backend(faults=Faults(fail=frozenset({10})), pause_s=0.01)
    server = serve(backend=device)
    response = server.chat(stream=True, max_tokens=200)
    assert response.status_code == 200
    assert events(response)[-1]["error"]["code"] == "device_failed"
    assert any(event.get("choices") for event in events(response))
    assert response.text.endswith("data: [DONE]\n\n")
    assert server.chat().status_code == 200
    assert server.free_pages() == 256


def test_a_dead_engine_ends_the_server_with_its_code(serve: Any, backend: Any) -> None:
    """When the device hangs, requests get typed errors, health turns false, and the exit code is 4."""
    faults = Faults(hang=frozenset({3}))
    server = serve(backend=backend(faults=faults, pause_s=0.01), engine={"step_timeout_s": 0.5, "stall_timeout_s": 0.5})
    daemon = server.daemon
    assert server.http.get("/healthz").status_code == 200
    response = server.chat(max_tokens=100)
    assert response.status_code == 503
    assert response.json()["error"]["code"] in ("step_timeout", "device_failed", "engine_dead")
    assert not server.engine.is_alive
    assert not daemon.state.is_healthy
    server.wait_until(lambda: server.exit_codes == [4])
    faults.release.set()


def test_health_stands_while_the_engine_moves(serve: Any, backend: Any) -> None:
    """Idle and busy engines are healthy; one that has stood still for longer than its limit is not."""
    server = serve(backend=backend(pause_s=0.01), engine={"stall_timeout_s": 0.5})
    state = server.daemon.state
    assert server.http.get("/healthz").json() == {"status": "ok"}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.chat, max_tokens=100)
        server.wait_until(lambda: server.engine.readings().requests)
        assert server.http.get("/healthz").status_code == 200
        assert answer.result().status_code == 200
    assert state.is_healthy


def test_figures_and_pages_tell_the_load(serve: Any) -> None:
    """Metrics and pages count what was done, in numbers that belong together."""
    server = serve()
    usage = server.chat("hello there " * 10, max_tokens=10).json()["usage"]
    server.chat("x" * 9000)
    lines = server.http.get("/metrics").text.splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures['pie_mlx:generation_tokens_total{model_name="fake"}']) == 10
    assert float(figures['pie_mlx:prompt_tokens_total{model_name="fake"}']) == usage["prompt_tokens"]
    assert float(figures['pie_mlx:request_success_total{finished_reason="length",model_name="fake"}']) == 1
    assert float(figures['pie_mlx:http_responses_total{path="/v1/chat/completions",status="400"}']) == 1
    assert float(figures['pie_mlx:num_requests_running{model_name="fake"}']) == 0
    facts = server.http.get("/v1/pages").json()
    pages = facts["pages"]
    assert facts["schema"] == "pie-mlx.pages/1"
    assert pages["free"] + pages["held"] == pages["total"] == 256
    assert pages["private"] + pages["shared"] + pages["cached"] == pages["held"]
    assert facts["counters"]["completed"] == 1
