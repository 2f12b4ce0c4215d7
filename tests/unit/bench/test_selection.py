"""Suites, prompts and shapes: the right cases, of exactly the stated size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.bench.decode import agreement
from pie_mlx.bench.energy import mean_watts
from pie_mlx.bench.explain import choice, choice_line
from pie_mlx.bench.machine import thermal
from pie_mlx.bench.searching import FixedTask, SearchShape
from pie_mlx.bench.suites import CORE_CASES, SUITES, select
from pie_mlx.bench.texts import prompt_of
from pie_mlx.errors import InvalidParameter

POWERMETRICS = """\
*** Sampled system activity (200.1ms elapsed) ***
CPU Power: 1234 mW
GPU Power: 9000 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 10234 mW
*** Sampled system activity (200.0ms elapsed) ***
Combined Power (CPU + GPU + ANE): 9766 mW
"""


class _Words:
    """A tokenizer with one token a word."""

    def encode(self, text: str) -> list[int]:
        """Return a number for each word."""
        return [sum(map(ord, word)) for word in text.split()]


@given(st.integers(1, 3000), st.integers(0, 50))
def test_a_prompt_has_exactly_the_tokens_that_the_report_states(num_tokens: int, variant: int) -> None:
    """Not about as many: throughput is tokens over seconds."""
    prompt = prompt_of(_Words(), num_tokens, variant=variant)
    assert len(prompt) == num_tokens
    assert prompt == prompt_of(_Words(), num_tokens, variant=variant)


def test_all_is_every_suite_and_also_what_is_measured_without_a_name() -> None:
    """The default leaves nothing out."""
    titles = [case.title for case in select(["all"])]
    assert titles == [case.title for case in select([])]
    assert {case.suite for case in select([])} == set(SUITES)
    assert len(set(titles)) == len(titles), "a case is found by its name"


def test_quick_has_something_of_every_suite_and_less_than_all() -> None:
    """A demonstration shows each kind of figure."""
    quick = select(["quick"])
    assert {case.suite for case in quick} == set(SUITES)
    assert len(quick) < len(select(["all"]))


@pytest.mark.parametrize("names", [["nope"], ["quick", "decode"], ["decode", "Quick"]])
def test_an_unknown_suite_is_refused(names: list[str]) -> None:
    """Also beside a known one."""
    with pytest.raises(InvalidParameter):
        select(names)


def test_only_keeps_the_cases_whose_name_has_the_text() -> None:
    """And a text that is in none is refused: measuring nothing is no success."""
    assert [case.name for case in select(["decode"], only="16 BRANCHES OF 2,048")] == [
        "16 branches of 2,048 shared tokens"
    ]
    with pytest.raises(InvalidParameter):
        select(["decode"], only="prefill")


@pytest.mark.parametrize(
    ("breadth", "beam", "depth", "nodes"),
    [(4, 2, 3, 4 + 8 + 8), (2, 3, 3, 2 + 4 + 6), (1, 5, 4, 4), (8, 2, 2, 8 + 16), (3, 9, 1, 3)],
)
def test_a_shape_knows_its_number_of_nodes(breadth: int, beam: int, depth: int, nodes: int) -> None:
    """Level by level: every kept node has ``breadth`` children, also where fewer than the beam are there to keep."""
    assert SearchShape(100, breadth, beam, depth).num_nodes == nodes


def test_the_searched_task_takes_any_thought_and_ends_at_its_depth() -> None:
    """The size of the tree depends on the shape alone."""
    task = FixedTask("q", 2)
    one = task.step(task.start(), "\t anything")
    assert not task.is_finished(one)
    assert task.is_finished(task.step(one, "more"))
    assert task.stop == ()
    assert task.key(one) == "", "no two nodes merge"


def test_agreement_counts_up_to_the_first_difference_of_each_row() -> None:
    """What follows a difference is another text and proves nothing."""
    assert agreement([[1, 2, 3, 4], [1, 2, 3, 4]], [[1, 2, 3, 4], [1, 9, 3, 4]]) == 5 / 8


def test_the_power_is_the_mean_of_the_combined_samples() -> None:
    """Parts are not added twice, and a text without a sample has no mean."""
    assert mean_watts(POWERMETRICS) == pytest.approx(10.0)
    assert mean_watts("Combined Power (CPU + GPU + ANE):") is None


def test_a_choice_is_told_cheapest_first() -> None:
    """The reader sees what was weighed, and what was taken."""
    line = choice_line({"chosen": "trees", "us_per_layer": {"each": 900.0, "trees": 120.0}})
    assert line is not None
    assert line.startswith("trees of: trees 120, each 900")
    assert choice_line(choice(None)) is None


def test_every_stated_figure_has_its_case() -> None:
    """A case that is renamed must not silently leave the core."""
    titles = [case.title for case in select(["core"])]
    for start in CORE_CASES:
        assert any(title.startswith(start) for title in titles), start
    with pytest.raises(InvalidParameter):
        select(["core", "decode"])


def test_the_machines_warmth_is_told_or_why_not() -> None:
    """A throttled run is not comparable with a cool one."""
    assert thermal()
