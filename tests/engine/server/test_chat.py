"""Chat completions: whole and streamed, several at once, held to a form, and asked again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pie_mlx.models.tokenizer import Tokenizer

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Prague", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def test_a_completion_says_what_it_is_and_what_it_cost(serve: Any) -> None:
    """The answer has text, a finish reason and the usage."""
    answer = serve().chat(max_tokens=8).json()
    choice = answer["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"]) == 8
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 8


def test_a_stream_joins_to_the_whole_answer(serve: Any, events: Callable[..., Any]) -> None:
    """With the same seed, streamed pieces join to the text of the answer that is not streamed."""
    server = serve()
    whole = server.chat(seed=5, max_tokens=40).json()["choices"][0]["message"]["content"]
    response = server.chat(seed=5, max_tokens=40, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    chunks = events(response)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 40


def test_the_same_seed_repeats_and_no_seed_differs(serve: Any) -> None:
    """A seed decides the answer, also over the stream; without one, two answers differ."""
    server = serve()

    def text(**fields: Any) -> str:
        return str(server.chat(max_tokens=30, **fields).json()["choices"][0]["message"]["content"])

    assert text(seed=1) == text(seed=1) != text(seed=2)
    assert text() != text()
    assert text(seed=-1) == text(seed=(1 << 64) - 1)


def test_several_answers_share_one_prompt(serve: Any) -> None:
    """``n`` answers differ, the first is that of the seed alone, and the prompt counts once."""
    server = serve()
    content = "a long question " * 8
    alone = server.chat(content, seed=3, max_tokens=20).json()
    four = server.chat(content, seed=3, n=4, max_tokens=20).json()
    texts = [choice["message"]["content"] for choice in four["choices"]]
    assert [choice["index"] for choice in four["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts[0] == alone["choices"][0]["message"]["content"]
    assert four["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert four["usage"]["completion_tokens"] == 80


def test_a_stream_of_several_answers_names_each(serve: Any, events: Callable[..., Any]) -> None:
    """Chunks carry their choice's index; each choice opens once and ends once."""
    chunks = events(serve().chat(n=3, stream=True, max_tokens=12))
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert sum("role" in c["delta"] for c in own) == 1
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["length"]
        assert len("".join(c["delta"].get("content", "") for c in own)) == 12


def test_a_resent_conversation_prefills_only_its_new_turn(serve: Any) -> None:
    """The prefix cache serves every full page of what was said before."""
    server = serve()
    messages = [{"role": "user", "content": "tell me a long story " * 20}]
    first = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 64}).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    said = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    second = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4}).json()
    old = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > old - 2 * 16
    several = server.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4, "n": 2}).json()
    assert several["usage"]["prompt_tokens_details"]["cached_tokens"] > old - 2 * 16


def test_a_stop_text_ends_the_answer_before_it(serve: Any, backend: Any) -> None:
    """A stop text is not part of the answer, alone or in a list."""
    server = serve(backend=backend(reply="one END two"))
    for stop in ("END", ["xyz", "END"]):
        choice = server.chat(stop=stop, max_tokens=50).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one ", "stop")


def test_log_probabilities_name_tokens_and_bytes(serve: Any) -> None:
    """Each token comes with its log-probability, its bytes and the likeliest instead of it."""
    choice = serve().chat(logprobs=True, top_logprobs=3, max_tokens=4).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 4
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in content)
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]


def test_reasoning_is_told_apart(serve: Any, backend: Any, tokenizer_of: Any, events: Callable[..., Any]) -> None:
    """What stands before the closing marker is reasoning_content, whole and streamed."""
    tokenizer: Tokenizer = tokenizer_of(THINKING)
    server = serve(backend=backend(reply="let me see</think>\n\nthe answer"), tokenizer=tokenizer)
    message = server.chat(max_tokens=60).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("let me see", "the answer")
    deltas = [c["choices"][0]["delta"] for c in events(server.chat(max_tokens=60, stream=True))]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "let me see"
    assert "".join(d.get("content", "") for d in deltas) == "the answer"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_read_out_of_the_text(
    serve: Any, backend: Any, stream: bool, events: Callable[..., Any]
) -> None:
    """A call of a known tool becomes tool_calls; its text does not show."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Prague"}}\n</tool_call>'
    server = serve(backend=backend(reply=f"I look.\n{call}"))
    response = server.chat(tools=[WEATHER], max_tokens=200, stream=stream)
    if stream:
        choices = [c["choices"][0] for c in events(response)]
        calls = [call for c in choices for call in c["delta"].get("tool_calls", ())]
        text = "".join(c["delta"].get("content") or "" for c in choices)
        reason = choices[-1]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        calls, text = choice["message"]["tool_calls"], choice["message"]["content"]
        reason = choice["finish_reason"]
    assert [call["function"]["name"] for call in calls] == ["weather"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Prague"}
    assert calls[0]["id"].startswith("call_")
    assert text.strip() == "I look."
    assert reason == "tool_calls"


def test_a_call_of_an_unknown_tool_stays_text(serve: Any, backend: Any) -> None:
    """Nothing that the model wrote is lost: what is no call of a known tool is content."""
    reply = '<tool_call>{"name": "launch", "arguments": {}}</tool_call>'
    choice = serve(backend=backend(reply=reply)).chat(tools=[WEATHER], max_tokens=200).json()["choices"][0]
    assert choice["message"]["content"] == reply
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_is_made_by_a_model_that_would_not(serve: Any, choice: Any) -> None:
    """The grammar holds even a device that draws at random to one valid call."""
    answer = serve().chat(tools=[WEATHER], tool_choice=choice, max_tokens=400, n=2).json()
    for one in answer["choices"]:
        (call,) = one["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"])["city"] in ("Prague", "Paris")
        assert one["finish_reason"] == "tool_calls"


def test_a_schema_holds_each_answer_of_a_batch(serve: Any) -> None:
    """Every one of several answers is JSON that the schema allows, next to one that is free."""
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "good": {"type": "boolean"}},
        "required": ["colour", "good"],
        "additionalProperties": False,
    }
    server = serve()
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = server.chat(response_format=wanted, n=4, max_tokens=100).json()
    for choice in answer["choices"]:
        value = json.loads(choice["message"]["content"])
        assert set(value) == {"colour", "good"}
        assert value["colour"] in ("red", "green")
        assert choice["finish_reason"] == "stop"


def test_a_schema_that_is_none_is_refused(serve: Any) -> None:
    """A schema that cannot be held is a typed 400, before anything runs."""
    server = serve()
    for schema in ({"type": "nonsense"}, {"$ref": "https://elsewhere/schema"}, {"type": "object", "properties": 7}):
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        response = server.chat(response_format=wanted)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["code"] == "invalid_request"
    assert server.chat().status_code == 200


def test_tool_results_and_earlier_calls_reach_the_model(serve: Any) -> None:
    """A conversation with calls, results and echoed extra fields is taken."""
    server = serve()
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "max_tokens": 4}
    response = server.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] > 300


TOOLS_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>"
    "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>{{ value }}</parameter>{% endfor %}"
    "</function></tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if messages[-1].role == 'tool' %}[result]{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_takes_tools_gets_them(serve: Any, backend: Any, tokenizer_of: Any) -> None:
    """Definitions, calls and results go through the template, and calls are read in the family's own form."""
    reply = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
    server = serve(backend=backend(reply=reply), tokenizer=tokenizer_of(TOOLS_TEMPLATE), logs_prompts=True)
    first = server.chat(tools=[WEATHER], max_tokens=200).json()["choices"][0]
    (call,) = first["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    messages = [
        {"role": "user", "content": "hello"},
        first["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    body = {"messages": messages, "tools": [WEATHER], "max_tokens": 4}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    wanted = server.daemon.state.tokenizer.chat(
        [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}],
            },
            {"role": "tool", "content": "rain", "name": "weather"},
        ],
        tools=[WEATHER],
    )
    assert "weather\nrain" in wanted.text
    assert answer.json()["usage"]["prompt_tokens"] == len(wanted.ids)
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        made = server.chat(tools=[WEATHER], tool_choice=choice, max_tokens=300).json()["choices"][0]
        assert made["message"]["tool_calls"][0]["function"]["name"] == "weather"
    none = server.chat(tools=[WEATHER], tool_choice="none", max_tokens=200).json()["choices"][0]
    assert none["message"]["content"] == reply


def test_a_model_without_a_template_says_so(serve: Any, tokenizer_of: Any) -> None:
    """Chat with a base model is a typed 400; a raw completion works."""
    server = serve(tokenizer=tokenizer_of(None))
    refusal = server.chat()
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "chat_template")
    assert server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200


def test_raw_completions_of_texts_and_tokens(serve: Any) -> None:
    """Prompts may be one text, several, or token ids; each has ``n`` choices in order."""
    server = serve()

    def ask(**body: Any) -> Any:
        response = server.http.post("/v1/completions", json={"max_tokens": 5, "seed": 1, **body})
        assert response.status_code == 200, response.text
        return response.json()

    one = ask(prompt="abc")
    assert [len(choice["text"]) for choice in one["choices"]] == [5]
    assert ask(prompt=[97, 98, 99])["choices"][0]["text"] == one["choices"][0]["text"]
    assert [c["index"] for c in ask(prompt=["abc", "de"], n=2)["choices"]] == [0, 1, 2, 3]
    assert len(ask(prompt=[[97], [98, 99]])["choices"]) == 2
    logprobs = ask(prompt="abc", logprobs=2)["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == 5
