"""The page: whole without a network, inert whatever the report says, and every figure on it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.bench.charts import pair_ratios, ratio_chart
from pie_mlx.bench.html import to_html
from pie_mlx.bench.report import Report, Row, Trials
from pie_mlx.errors import Fact

MACHINE: dict[str, Fact] = {
    "cpu": "A <b>fast</b> one",
    "cores": 2,
    "system": "Linux",
    "device": "cpu",
    "dtype": "float32",
    "read_bytes_per_s": 1.6e10,
    "load": [9.0, 1.0, 1.0],
    "energy": "not here",
}
SETTINGS: dict[str, Fact] = {
    "model": "tiny",
    "baseline": "mlx-lm",
    "trials": 2,
    "warm_ups_dropped": 1,
    "decode_tokens": 8,
    "sampling": "greedy",
    "prefix_cache": False,
    "pool_pages": 64,
    "page_size": 16,
}


def report(*rows: Row, model: str = "tiny") -> dict[str, Any]:
    """Return the JSON of a report."""
    made = Report(MACHINE, {"pie-mlx": "1", "mlx-lm": "2"}, {**SETTINGS, "model": model}, rows)
    return json.loads(json.dumps(made.to_json()))  # type: ignore[no-any-return]


def decode_row(rows: int, ours: tuple[float, ...], theirs: tuple[float, ...] | None) -> Row:
    """Return a row of the decode suite."""
    facts: dict[str, Fact] = {
        "rows": rows,
        "prompt_tokens": 512,
        "attention": "trees",
        "kv_bytes": 4_000_000,
        "equal_tokens": 1.0,
    }
    baseline = None if theirs is None else Trials(theirs, 2_000_000)
    return Row("decode", f"{rows} branches", "tok/s", Trials(ours, 1_000_000), baseline, "mlx-lm", facts=facts)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """No script, no link, no address; the style is allowed by its own digest."""
    page = to_html(report(decode_row(16, (20.0, 22.0), (10.0, 11.0))))
    assert "<script" not in page
    assert not re.search(r"https?://|src=|href=|@import|url\(", page)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"sha256-{digest}" in page
    assert "prefers-color-scheme:dark" in page


@given(st.text(max_size=40))
def test_texts_of_the_report_are_inert(text: str) -> None:
    """A model's or a case's name cannot become markup, in the page, in its charts or in the raw report."""
    evil = f"<img onerror=x>{text}</pre>"
    row = Row("decode", evil, "tok/s", Trials((1.0,)), Trials((2.0,)), evil, facts={"attention": evil})
    page = to_html(report(row, model=evil))
    assert "<img" not in page
    assert page.count("</pre>") == 1


def test_figures_ratios_memory_and_how_it_ran_are_on_the_page() -> None:
    """What the report knows of a row, the reader sees."""
    page = to_html(report(decode_row(16, (20.0, 22.0), (10.0, 11.0))))
    for shown in ("21.0 tok/s", "10.5 tok/s", "2.00×", "4 MB", "1 MB", "2 MB", "trees", "512 prompt tokens", "100%"):
        assert shown in page, shown
    assert "A &lt;b&gt;fast&lt;/b&gt; one" in page
    assert "The machine was busy" in page


def test_without_a_baseline_no_ratio_is_drawn() -> None:
    """Nothing is made up for a side that did not run."""
    page = to_html(report(decode_row(16, (20.0, 22.0), None)))
    assert "21.0 tok/s" in page
    assert "ratio to the baseline" not in page


def test_three_widths_of_a_family_get_a_chart_of_their_own() -> None:
    """How a figure grows with the rows is a picture, two points are none."""
    rows = [decode_row(width, (float(width), float(width)), (1.0, 1.0)) for width in (4, 8, 16)]
    assert "tok/s by rows" in to_html(report(*rows))
    assert "tok/s by rows" not in to_html(report(*rows[:2]))


@given(st.lists(st.tuples(st.floats(1e-4, 1e6), st.floats(1e-4, 1e6)), min_size=1, max_size=5))
def test_the_ratio_chart_stays_in_its_frame(pairs: list[tuple[float, float]]) -> None:
    """Whatever the ratios, every mark is drawn inside the picture and labels are finite."""
    ours, theirs = zip(*pairs, strict=True)
    told = report(decode_row(2, ours, theirs))["rows"]
    chart = ratio_chart(told)
    width = float(re.search(r'viewBox="0 0 (\d+)', chart)[1])  # type: ignore[index]
    spots = [float(x) for x in re.findall(r'\b(?:cx|x1|x2)="([-0-9.]+)"', chart)]
    assert all(0 <= x <= width for x in spots)
    assert "nan" not in chart
    assert len(pair_ratios(told[0])) == len(pairs)
