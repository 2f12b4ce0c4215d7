"""Markdown is split into blocks that never change again, wherever its pieces are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.chat.blocks import Block, BlockSplitter, Kind

_TEXT = st.lists(
    st.sampled_from(
        [
            "word",
            " ",
            "\n",
            "\n\n",
            "```",
            "```py\n",
            "~~~\n",
            "- a\n",
            "1. b\n",
            "  more\n",
            "# h\n",
            "---\n",
            "> q\n",
            "|a|b|\n",
            "`",
        ]
    ),
    max_size=30,
).map("".join)


def _split(text: str, size: int) -> list[Block]:
    """Push a text in pieces of ``size`` characters; return all blocks."""
    splitter = BlockSplitter()
    blocks = [block for at in range(0, len(text), size) for block in splitter.push(text[at : at + size])]
    return blocks + splitter.finish()


@given(_TEXT, st.integers(1, 9))
def test_the_blocks_do_not_depend_on_the_pieces(text: str, size: int) -> None:
    """Streaming in any pieces gives the blocks of the whole text."""
    assert _split(text, size) == _split(text, max(len(text), 1))


@given(_TEXT, st.integers(1, 9))
def test_no_text_is_lost_or_doubled(text: str, size: int) -> None:
    """Blocks hold every word of the text once, in order; only empty lines and outer spaces go."""
    joined = "".join("".join(block.text.split()) for block in _split(text, size))
    assert joined == "".join(text.split())


@given(_TEXT, st.integers(1, 9))
def test_finished_blocks_and_tail_make_the_text(text: str, size: int) -> None:
    """At every moment, what is finished and what is not are all of the text so far."""
    splitter = BlockSplitter()
    done = ""
    for at in range(0, len(text), size):
        done += "".join("".join(block.text.split()) for block in splitter.push(text[at : at + size]))
        assert done + "".join(splitter.tail.split()) == "".join(text[: at + size].split())


def test_code_is_finished_line_by_line() -> None:
    """A long code block never waits for its end."""
    splitter = BlockSplitter()
    assert [block.kind for block in splitter.push("```python\nx = 1\n  y\n")] == [Kind.FENCE, Kind.CODE, Kind.CODE]
    assert splitter.tail == ""
    assert splitter.push("```\n") == [Block(Kind.FENCE, "```")]


def test_a_longer_fence_holds_a_shorter_one() -> None:
    """Only a fence at least as long closes the block."""
    kinds = [block.kind for block in _split("````\n```\na\n````\nb\n", 100)]
    assert kinds == [Kind.FENCE, Kind.CODE, Kind.CODE, Kind.FENCE, Kind.TEXT]


def test_a_list_is_finished_item_by_item() -> None:
    """An item holds what is indented under it, also behind an empty line."""
    blocks = _split("- a\n  more\n\n  still\n- b\n\nafter", 3)
    assert [(block.kind, block.text) for block in blocks] == [
        (Kind.ITEM, "- a\n  more\n\n  still"),
        (Kind.ITEM, "- b"),
        (Kind.TEXT, "after"),
    ]
    assert [block.has_gap for block in blocks] == [False, False, True]


@pytest.mark.parametrize("text", ["Title\n---\n", "Title\n===\n"])
def test_an_underlined_heading_is_one_block(text: str) -> None:
    """A rule under text belongs to the text."""
    assert [block.text for block in _split(text, 2)] == [text.rstrip("\n")]
