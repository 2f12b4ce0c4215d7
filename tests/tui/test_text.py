"""Text on the screen is literal, cleaned, and measured in cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from pie_mlx.tui.text import bar, clean_text, clock, count, curve, fit, one_line, quantity, seconds, spark


@given(st.text())
def test_cleaned_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    """No control but the line feed, no reordering mark and no lone surrogate is left."""
    cleaned = clean_text(text)
    assert not any(ord(char) < 32 and char != "\n" for char in cleaned)
    assert not any(
        0x7F <= ord(char) < 0xA0 or 0x202A <= ord(char) <= 0x202E or 0x2066 <= ord(char) <= 0x2069 for char in cleaned
    )
    cleaned.encode("utf-8")


def test_escape_sequences_become_visible() -> None:
    """An escape that would switch the mouse on is shown, not sent."""
    assert clean_text("a\x1b[?1003h\x07b\rc\td") == "a␛[?1003h␇bc    d"


def test_markup_is_kept_as_it_is() -> None:
    """Tags are text like any other."""
    assert one_line("[/x] [@click=app.quit]x[/]  \n \\[red") == "[/x] [@click=app.quit]x[/] \\[red"


@given(st.text(), st.integers(0, 40), st.booleans())
def test_fitted_text_has_the_cells_it_was_given(text: str, cells: int, right: bool) -> None:
    """Wide characters included, a fitted text fills its cells exactly."""
    assert cell_len(fit(one_line(text), cells, right=right)) == cells


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0, ""), (0.5, "━━"), (0.625, "━━╸"), (1.0, "━━━━"), (7.0, "━━━━"), (-1.0, "")]
)
def test_a_bar_is_exact_to_half_a_cell(share: float, shown: str) -> None:
    """Shares outside 0 to 1 are clipped."""
    assert bar(share, 4) == shown


@given(st.lists(st.just(0.0) | st.floats(0.001, 1e6), min_size=1, max_size=300), st.integers(1, 60), st.integers(1, 4))
def test_a_curve_fills_its_box_and_keeps_its_peak(values: list[float], cells: int, rows: int) -> None:
    """Every line has the asked cells, and the largest value reaches the top wherever there is any."""
    lines = curve(values, cells, rows)
    assert [len(line) for line in lines] == [cells] * rows
    if max(values) > 0 and len(values) >= cells:
        assert "█" in lines[0]


def test_a_small_value_still_shows() -> None:
    """Something is not drawn as nothing."""
    assert spark([0.0, 0.001, 1.0], 3) == " ▁█"
    assert spark([], 3) == ""


def test_numbers_read_as_people_write_them() -> None:
    """Counts, durations and clocks keep the digits that matter."""
    assert [count(n) for n in (7, 9_999, 12_345, 250_000, 3_000_000)] == ["7", "9999", "12.3k", "250k", "3.0M"]
    assert [seconds(s) for s in (0.00005, 0.25, 3.21, 600)] == ["50 µs", "250 ms", "3.2 s", "10.0 min"]
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
    assert [quantity(n, "page") for n in (0, 1, 2)] == ["0 pages", "1 page", "2 pages"]
