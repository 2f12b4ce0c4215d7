"""Reasoning and answer are told apart, in whatever pieces the text comes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.models.reasoning import (
    KNOWN_MARKERS,
    ReasoningSplitter,
    SplitText,
    find_markers,
    split_reasoning,
    starts_in_thinking,
)

THINK, HARMONY = KNOWN_MARKERS[0], KNOWN_MARKERS[-1]


def _pieces(text: str, cuts: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise(sorted({0, len(text), *(cut for cut in cuts if cut < len(text))}))]


def _split(pieces: list[str], *, thinking: bool = False) -> SplitText:
    splitter = ReasoningSplitter(THINK, thinking=thinking)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return SplitText("".join(part.reasoning for part in parts), "".join(part.answer for part in parts))


def test_markers_are_neither() -> None:
    """The markers and the white space after them belong to neither part."""
    assert split_reasoning("<think>\nhm\n</think>\n\nYes.", THINK) == SplitText("hm\n", "Yes.")


def test_prompt_opened_the_thinking() -> None:
    """Where the prompt already opened the thinking, only the closing marker comes."""
    assert split_reasoning("hm</think>Yes.", THINK, thinking=True) == SplitText("hm", "Yes.")


def test_never_closed() -> None:
    """Where the text ends inside the thinking the answer is empty, and the splitter knows."""
    splitter = ReasoningSplitter(THINK)
    assert splitter.push("<think>hm </thi") == SplitText("hm ")
    assert splitter.finish() == SplitText("</thi")
    assert splitter.thinking


def test_model_that_does_not_reason() -> None:
    """Without markers all text is the answer, at once and untouched."""
    assert ReasoningSplitter(None).push("  <think>") == SplitText(answer="  <think>")
    assert split_reasoning("  a < b", THINK) == SplitText(answer="  a < b")


def test_channels() -> None:
    """A model that speaks in channels is told apart by them."""
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    assert split_reasoning(text, HARMONY) == SplitText("hm", "Yes.")
    assert split_reasoning("<|channel|>final<|message|>Yes.", HARMONY) == SplitText(answer="Yes.")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", " ", "\n", "a", "<"]), max_size=12),
    st.lists(st.integers(0, 80), max_size=8),
    st.booleans(),
)
def test_pieces_do_not_matter(words: list[str], cuts: list[int], thinking: bool) -> None:
    """Any cutting of the text gives the same two parts."""
    text = "".join(words)
    whole = split_reasoning(text, THINK, thinking=thinking)
    assert _split(_pieces(text, cuts), thinking=thinking) == whole
    assert _split(list(text), thinking=thinking) == whole


def test_end_of_prompt_decides() -> None:
    """A prompt starts in thinking if its last opening marker is not closed."""
    assert starts_in_thinking("a<think>\n", THINK)
    assert not starts_in_thinking("a<think>\n</think>", THINK)
    assert starts_in_thinking("<think></think><think>", THINK)
    assert not starts_in_thinking("a<think>", None)


def test_markers_are_found_in_vocabulary_or_template() -> None:
    """A model reasons in the open if its vocabulary or its template has the markers."""
    assert find_markers({"<think>", "</think>"}.__contains__, None) == THINK
    assert find_markers(set[str]().__contains__, "x<think>y</think>") == THINK
    assert find_markers({"<|channel|>", "<|message|>", "<|start|>"}.__contains__, None) == HARMONY
    assert find_markers(set[str]().__contains__, "plain") is None
