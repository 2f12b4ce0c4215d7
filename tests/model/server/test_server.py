"""The server over the starter model: the same tokens as the engine, real schemas, real templates."""

from __future__ import annotations

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

from pie_mlx.engine import Engine
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.server.daemon import Daemon
from pie_mlx.server.settings import ServerSettings

pytestmark = pytest.mark.model


@pytest.fixture
def client(starter_engine: Engine) -> Iterator[httpx2.Client]:
    """Return a client of a server over the starter."""
    daemon = Daemon(starter_engine, ServerSettings(port=0))
    ready = threading.Event()
    thread = threading.Thread(target=daemon.run, args=(ready.set,), daemon=True)
    thread.start()
    assert ready.wait(30)
    with httpx2.Client(base_url=daemon.url, timeout=120) as opened:
        yield opened
    daemon.stop()
    thread.join(30)
    assert not thread.is_alive()


def ask(client: httpx2.Client, messages: list[dict[str, str]], **fields: Any) -> Any:
    """Ask greedily for a chat completion."""
    body = {"messages": messages, "max_tokens": 16, "temperature": 0, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def test_http_gives_the_engines_own_tokens(client: httpx2.Client, starter_engine: Engine) -> None:
    """A greedy answer over HTTP is the text that the engine generates after the same prompt."""
    tokenizer = starter_engine.codec
    assert isinstance(tokenizer, Tokenizer)
    with starter_engine.context(tokenizer.render([{"role": "user", "content": QUESTION[0]["content"]}])) as context:
        direct = context.generate(max_tokens=16)
    answer = ask(client, QUESTION)
    assert answer["choices"][0]["message"]["content"] == direct.text
    assert answer["usage"]["completion_tokens"] == direct.completion_tokens


def test_a_schema_holds_the_starter(client: httpx2.Client) -> None:
    """Each of four answers of a real model is JSON that the schema allows, whatever tokens it is cut into."""
    properties = {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "mood": {"enum": ["glad", "traurig", "😀"]},
    }
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    answer = ask(client, messages, response_format=wanted, n=4, max_tokens=90, temperature=1.0, seed=5)
    for choice in answer["choices"]:
        assert choice["finish_reason"] == "stop"
        person = json.loads(choice["message"]["content"])
        assert set(person) == set(properties)
        assert 0 <= person["age"] <= 99
        assert person["mood"] in ("glad", "traurig", "😀")


def test_a_resent_conversation_is_cached(client: httpx2.Client) -> None:
    """The second turn prefills its own tokens, but for a last page that was not full."""
    messages = [{"role": "user", "content": "Tell me about the sea. " * 8}]
    first = ask(client, messages, max_tokens=24)
    said = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And the sky?"}]
    second = ask(client, messages, max_tokens=4)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 16


def test_a_required_call_of_the_starter_is_valid(client: httpx2.Client) -> None:
    """A model that was never taught tools makes a valid call when it must."""
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    answer = ask(client, QUESTION, tools=[tool], tool_choice="required", max_tokens=80)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"])["city"], str)


def test_the_command_serves_and_drains(starter: Path) -> None:
    """``pie-mlx serve`` tells its address as JSON, answers, and ends with 0 after SIGTERM."""
    command = [sys.executable, "-m", "pie_mlx", "serve", "--port", "0", "--json", "--pool-pages", "64"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["schema"] == "pie-mlx.serve/1"
        body = {"messages": QUESTION, "max_tokens": 2}
        response = httpx2.post(f"{facts['url']}/v1/chat/completions", json=body, timeout=60)
        assert response.status_code == 200
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert "capital" not in err
