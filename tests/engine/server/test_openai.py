"""The official Python client against our server: what it sends is taken, what it gets has its types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from pie_mlx.backend.fake import Faults

ASK: Any = [{"role": "user", "content": "hello"}]
CITY: Any = {
    "type": "function",
    "function": {
        "name": "visit",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client_of() -> Iterator[Callable[[Any], openai.OpenAI]]:
    """Return a function from a server to a client without retries."""
    clients: list[openai.OpenAI] = []

    def make(server: Any, key: str = "unused") -> openai.OpenAI:
        clients.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=30))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_completions_streams_and_usage(serve: Any, client_of: Any) -> None:
    """A whole answer, a stream of it, and the models list."""
    client = client_of(serve())
    assert [model.id for model in client.models.list()] == ["fake"]
    whole = client.chat.completions.create(model="fake", messages=ASK, max_tokens=20, seed=4)
    assert whole.usage.completion_tokens == 20
    assert whole.usage.prompt_tokens_details.cached_tokens == 0
    stream = client.chat.completions.create(
        model="fake", messages=ASK, max_tokens=20, seed=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_four_answers_and_their_log_probabilities(serve: Any, client_of: Any) -> None:
    """``n=4`` with logprobs has the client's types throughout."""
    client = client_of(serve())
    answer = client.chat.completions.create(
        model="fake", messages=ASK, max_completion_tokens=6, n=4, logprobs=True, top_logprobs=2
    )
    assert len({choice.message.content for choice in answer.choices}) == 4
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 6
        assert len(choice.logprobs.content[0].top_logprobs) == 2


def test_tools_and_schemas(serve: Any, client_of: Any) -> None:
    """A required call and a schema give what they promise, also as a stream."""
    client = client_of(serve())
    call = client.chat.completions.create(
        model="fake", messages=ASK, tools=[CITY], tool_choice="required", max_tokens=300
    )
    (made,) = call.choices[0].message.tool_calls
    assert json.loads(made.function.arguments)["city"] in ("Rome", "Oslo")
    wanted: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "flag",
            "schema": {
                "type": "object",
                "properties": {"a": {"type": "boolean"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    stream = client.chat.completions.create(
        model="fake", messages=ASK, response_format=wanted, max_tokens=50, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert isinstance(json.loads(text)["a"], bool)


def test_legacy_completions(serve: Any, client_of: Any) -> None:
    """The older endpoint, whole and streamed."""
    client = client_of(serve())
    whole = client.completions.create(model="fake", prompt="abc", max_tokens=7, seed=2, logprobs=1)
    assert len(whole.choices[0].logprobs.tokens) == 7
    stream = client.completions.create(model="fake", prompt="abc", max_tokens=7, seed=2, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


def test_errors_have_the_clients_classes(serve: Any, client_of: Any, backend: Any) -> None:
    """Each kind of refusal raises the class that the client has for it, with our code in it."""
    server = serve(backend=backend(faults=Faults(fail=frozenset({0}))), api_key="correct-horse", pages=16)
    with pytest.raises(openai.AuthenticationError):
        client_of(server, "wrong-key").models.list()
    client = client_of(server, "correct-horse")
    with pytest.raises(openai.InternalServerError) as broken:
        client.chat.completions.create(model="fake", messages=ASK)
    assert (broken.value.status_code, broken.value.code) == (503, "device_failed")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=ASK)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="fake", messages=ASK, temperature=-1)
    assert (wrong.value.code, wrong.value.param) == ("invalid_request", "temperature")
    with pytest.raises(openai.BadRequestError) as large:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 600}])
    assert large.value.code == "impossible"


def test_a_stream_that_fails_raises_in_the_client(serve: Any, client_of: Any, backend: Any) -> None:
    """A failure in the middle reaches the client as its APIError, after the pieces before it."""
    client = client_of(serve(backend=backend(faults=Faults(fail=frozenset({12})), pause_s=0.01)))
    pieces: list[str] = []
    stream = client.chat.completions.create(model="fake", messages=ASK, max_tokens=100, stream=True)
    with pytest.raises(openai.APIError, match="injected failure"):
        pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(pieces)


def test_closing_a_stream_frees_its_pages(serve: Any, client_of: Any, backend: Any) -> None:
    """A client that stops reading and closes ends the request."""
    server = serve(backend=backend(pause_s=0.01))
    stream = client_of(server).chat.completions.create(model="fake", messages=ASK, max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    assert server.free_pages() == 256
    assert server.engine.readings().counters["cancelled"] == 1
