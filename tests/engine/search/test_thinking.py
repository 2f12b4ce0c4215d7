"""Thinking models: reasoning has a budget of its own, and no score is read inside a think block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pie_mlx.search.dialogue import Dialogue
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event, NodeDone

MARKERS = ("{", "}")


def test_reasoning_and_thought_have_budgets_apart(start_engine: Any, char_text: Any) -> None:
    """Each thought has its reasoning, kept beside the text, and neither eats the other's tokens."""
    events: list[Event] = []
    params = SearchParams(max_tokens=10, answer_tokens=10, reasoning_tokens=20, breadth=2, beam=1)
    engine = start_engine(text=char_text(MARKERS))
    result = Run(engine, Free("Why?", depth=2), params, listen=events.append).result(60)
    thoughts = [event for event in events if isinstance(event, NodeDone) and event.node != "0"]
    assert result.answer
    assert all(len(event.text) <= 10 for event in thoughts)
    assert all(len(event.reasoning) <= 20 for event in thoughts)
    assert any(event.reasoning for event in thoughts)
    assert result.pages.free_after == 512


def test_a_node_s_sequence_holds_no_think_block(start_engine: Any, char_text: Any) -> None:
    """What is judged and continued is prompt, leads and thoughts: the reasoning is not in it."""
    text = char_text(MARKERS)
    judged: list[Sequence[int]] = []
    engine = start_engine(text=text)
    params = SearchParams(max_tokens=10, answer_tokens=10, reasoning_tokens=20, breadth=2, beam=1)
    run = Run(engine, Free("Why?", depth=2), params)
    original = run._judge.labels

    def labels(nodes: Any, questions: Any) -> Any:
        judged.extend(question.tokens for question in questions)
        return original(nodes, questions)

    run._judge.labels = labels  # type: ignore[method-assign]
    run.result(60)
    assert judged
    for tokens in judged:
        told = text.decode(tokens)
        assert told.count("{") <= sum(n.text.count("{") for n in run.tree.nodes.values())
        assert not any(n.reasoning and n.reasoning in told for n in run.tree.nodes.values() if len(n.reasoning) > 5)


def test_the_prompt_is_rendered_without_thinking(char_text: Any) -> None:
    """The reply that the search continues starts outside any think block."""
    text = char_text(MARKERS)
    asked: list[bool | None] = []
    original = text.render

    def render(messages: Any, **options: Any) -> Any:
        asked.append(options.get("thinking"))
        return original(messages, **options)

    text.render = render
    Dialogue(text, system="", prompt="Why?", reasoning_tokens=5)
    assert asked == [False]
