"""Stop strings: found wherever tokens begin and end, and nothing of them is shown."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.errors import InvalidParameter
from pie_mlx.models.stops import MAX_STOPS, StopMatcher


def _run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        emitted, matched = matcher.push(piece)
        shown += emitted
        if matched:
            return shown, True
    return shown + matcher.finish(), False


def test_cut_before_a_stop_inside_a_token() -> None:
    """A token that holds the stop string and more is cut before the stop string."""
    assert _run(["END"], ["so ", "END!", " more"]) == ("so ", True)


def test_stop_across_tokens_is_held_back() -> None:
    """The beginning of a stop string is not shown before it is clear that it is none."""
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("hi\n") == ("hi", False)
    assert matcher.push("\nUs") == ("", False)
    assert matcher.push("er: x") == ("", True)
    assert matcher.matched == "\n\nUser:"
    assert matcher.push("more") == ("", True)


def test_what_was_no_stop_is_shown() -> None:
    """A beginning that goes on otherwise, or ends, is shown in full."""
    assert _run(["END"], ["E", "N", "x", "EN"]) == ("ENxEN", False)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.text("abc", max_size=20),
    st.lists(st.integers(0, 20), max_size=6),
)
def test_result_does_not_depend_on_the_pieces(stops: list[str], text: str, cuts: list[int]) -> None:
    """The same text in any pieces gives the same result: up to the stop string that is complete first."""
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = (text[: min(ends)[1]], True) if ends else (text, False)
    assert _run(stops, pieces) == expected
    assert _run(stops, list(text)) == expected


@pytest.mark.parametrize("stops", [[""], ["a", ""], ["x"] * (MAX_STOPS + 1), "END", [3]])
def test_senseless_stops_are_refused(stops: list[str]) -> None:
    """An empty stop string, too many, or a bare text is a mistake found before any work."""
    with pytest.raises(InvalidParameter, match="stop"):
        StopMatcher(stops)


def test_no_stops_pass_everything() -> None:
    """Without stop strings text passes at once."""
    assert StopMatcher([]).push("abc") == ("abc", False)
