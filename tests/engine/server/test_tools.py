"""Calls in streamed text: however the text is cut, the same calls and the same rest come out."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.models.tool_calls import HERMES, CallForm
from pie_mlx.server.bodies import Function
from pie_mlx.server.tools import CallSplitter

LOOK = Function(name="look", parameters={"type": "object", "properties": {"at": {"type": "integer"}}})
CODER = CallForm("<tool_call>", "</tool_call>", "qwen3_coder")
MISTRAL = CallForm("[TOOL_CALLS]", "", "mistral")

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é<b>"}}\n</tool_call>'
TEXTS = (
    "no call at all",
    CALL,
    f"before {CALL} after",
    f"{CALL}\n{CALL}",
    f"{CALL[:-12]}",
    '{"name": "look", "arguments": {}}',
    '  {"name": "other"}',
    '{"colour": 1} and more',
    "<tool_call>not json</tool_call>",
    "a < b <tool <tool_call",
    '[{"name": "look"}]',
    "",
    " \n ",
)


def split(
    pieces: list[str], form: CallForm = HERMES, max_calls: int | None = None
) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls of a stream."""
    splitter = CallSplitter([LOOK], form, max_calls=max_calls)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    calls = [(call.name, call.arguments) for part in parts for call in part.calls]
    return "".join(part.text for part in parts), calls


@given(text=st.sampled_from(TEXTS), cuts=st.lists(st.integers(0, 80), max_size=12))
def test_the_cut_of_a_stream_does_not_matter(text: str, cuts: list[int]) -> None:
    """Pieces of any size give the calls of the whole, and its text up to white space."""
    places = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    told, calls = split(pieces)
    whole, whole_calls = split([text])
    assert calls == whole_calls
    assert "".join(told.split()) == "".join(whole.split())


@pytest.mark.parametrize("text", [text for text in TEXTS if "look" not in text])
def test_text_without_a_call_comes_out_as_it_was(text: str) -> None:
    """Nothing of a text is lost that is no call."""
    assert split([text]) == (text, [])


def test_calls_are_read_with_their_arguments() -> None:
    """Marked, unclosed and bare calls are read; what stands around them is text."""
    arguments = json.dumps({"at": "é<b>"}, ensure_ascii=False)
    assert split([f"before {CALL} after"]) == ("before  after", [("look", arguments)])
    assert split([CALL[:-12]])[1] == [("look", arguments)]
    assert split(['{"name": "look", "parameters": {"x": 1}}']) == ("", [("look", '{"x": 1}')])


@given(cut=st.integers(0, 60))
def test_a_familys_own_form_is_read(cut: int) -> None:
    """Types come from the tool's schema where the form has none; a form without an end takes all that follows."""
    text = "Sure.<tool_call>\n<function=look>\n<parameter=at>\n5\n</parameter>\n</function>\n</tool_call>"
    assert split([text[:cut], text[cut:]], CODER) == ("Sure.", [("look", '{"at": 5}')])
    text = 'Sure.[TOOL_CALLS][{"name": "look", "arguments": {"at": 5}}, {"name": "look", "arguments": {"at": 6}}]'
    assert split([text[:cut], text[cut:]], MISTRAL) == ("Sure.", [("look", '{"at": 5}'), ("look", '{"at": 6}')])


@pytest.mark.parametrize("form", [HERMES, CODER, MISTRAL])
def test_what_a_parser_cannot_read_stays_text(form: CallForm) -> None:
    """A call of an unknown function, or no call at all, is not lost and raises nothing."""
    for inside in ("", "{", "<function=launch></function>", '[{"name": 5}]', "launch[ARGS]{}", "[" * 5000):
        text = f"{form.start}{inside}{form.end}"
        assert split([text], form) == (text, [])


def test_calls_that_must_not_be_parallel() -> None:
    """Where one call is allowed, the first is taken."""
    both = CALL + CALL.replace("é", "e")
    assert len(split([both])[1]) == 2
    assert split([both], max_calls=1)[1] == [("look", json.dumps({"at": "é<b>"}, ensure_ascii=False))]
