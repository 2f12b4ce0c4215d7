"""A search in half of the pages that it would like: little is computed twice, and branches still go side by side."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pie_mlx.events import StepDone
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Judging
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event, Scored

NEED = 93
"""Pages that the search holds where it has them."""


class Fixed(Free):
    """A free question whose every word is fixed here."""

    system: ClassVar[str] = ""

    def prompt(self) -> str:
        """Return 120 characters."""
        return self.question.ljust(120, ".")

    def lead(self, state: tuple[str, ...]) -> str:
        """Number the step."""
        return f"\nStep {len(state) + 1}:"

    def judging(self, state: tuple[str, ...]) -> Judging:
        """Ask in about 25 characters."""
        return Judging("\nAre these steps right:", {"good": 1.0, "bad": 0.0})


def search(start_engine: Any, pool_pages: int) -> tuple[SearchResult, int, int, int]:
    """Search two levels of eight; return the result, the steps, the tokens computed and the most pages held."""
    engine = start_engine(pool_pages, prefix_cache=False)
    params = SearchParams(strategy="beam", breadth=8, beam=2, depth=2, max_tokens=32, scorer="label", dedup=False)
    with engine.listen() as events:
        result = Run(engine, Fixed("Why is the sky blue?"), params).result(60)
        pages = [event.pages for event in events.drain() if isinstance(event, StepDone)]
    counters = engine.readings().counters
    return result, counters["steps"], counters["tokens_committed"], max(each.private + each.shared for each in pages)


def test_half_of_the_pages_cost_few_steps_and_tokens_more(start_engine: Any) -> None:
    """Written siblings give their pages to the rest of their level, and their parent stays for all of them."""
    wide, steps, tokens, held = search(start_engine, 512)
    tight, tight_steps, tight_tokens, _ = search(start_engine, NEED // 2)
    assert held > 1.4 * (NEED // 2), "counted as each step ends: the pool below is really too small"
    assert [node.text for node in tight.nodes] == [node.text for node in wide.nodes]
    assert tight_steps <= steps * 1.75
    assert tight_tokens <= tokens * 1.03


def told(start_engine: Any, pool_pages: int, **params: Any) -> tuple[list[Any], int]:
    """Search two levels of eight; return what was told but for pages and times, and the tokens computed."""
    engine = start_engine(pool_pages, prefix_cache=False)
    events: list[Event] = []
    known: dict[str, Any] = {"strategy": "beam", "breadth": 8, "beam": 2, "depth": 2, "max_tokens": 32, "dedup": False}
    result = Run(engine, Fixed("Why is the sky blue?"), SearchParams(**(known | params)), listen=events.append).result(
        60
    )
    scores = [(event.node, event.score, event.tokens) for event in events if isinstance(event, Scored)]
    nodes = [(node.id, node.text, node.status) for node in result.nodes]
    return [result.finish_reason, result.tokens, nodes, *scores], engine.readings().counters["tokens_committed"]


@pytest.mark.parametrize("scorer", ["label", "p_true", "rating"])
@pytest.mark.parametrize("strategy", ["beam", "dvts", "best_first", "best_of_n"])
def test_a_level_in_parts_has_the_scores_and_the_costs_of_a_whole_one(
    start_engine: Any, scorer: str, strategy: str
) -> None:
    """Judged part by part, as contexts are about to be closed, or together: nothing that is told differs."""
    wide, _ = told(start_engine, 512, scorer=scorer, strategy=strategy)
    tight, _ = told(start_engine, NEED // 2, scorer=scorer, strategy=strategy)
    assert len(wide) > 3, "something was scored"
    assert tight == wide


@pytest.mark.parametrize("budget_tokens", range(500, 1500, 83))
def test_a_budget_ends_both_pools_in_the_same_place(start_engine: Any, budget_tokens: int) -> None:
    """An early judgement is counted when it is asked for, not when it is made."""
    wide, _ = told(start_engine, 512, scorer="label", budget_tokens=budget_tokens)
    tight, _ = told(start_engine, NEED // 2, scorer="label", budget_tokens=budget_tokens)
    assert tight == wide


def test_a_vote_waits_for_its_whole_level(start_engine: Any) -> None:
    """A part of the candidates is not voted on; its questions are long, so that a smaller pool holds none."""
    wide, _ = told(start_engine, 512, scorer="vote", max_tokens=4)
    tight, _ = told(start_engine, 36, scorer="vote", max_tokens=4)
    assert tight == wide


@pytest.mark.parametrize(("scorer", "share"), [("label", 1.03), ("p_true", 1.02), ("rating", 1.07)])
def test_a_part_of_a_level_is_judged_while_its_contexts_are_open(start_engine: Any, scorer: str, share: float) -> None:
    """Thoughts that give way to the rest of their level are not computed again to be judged.

    ``share`` is what making room costs; the questions of a rating are the longest.
    """
    _, tokens = told(start_engine, 512, scorer=scorer)
    _, tight_tokens = told(start_engine, NEED // 2, scorer=scorer)
    assert tight_tokens <= tokens * share
