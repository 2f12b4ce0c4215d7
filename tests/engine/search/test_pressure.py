"""A search in half of the pages that it would like: little is computed twice, and branches still go side by side."""

from __future__ import annotations

from typing import Any, ClassVar

from pie_mlx.events import StepDone
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Judging
from pie_mlx.search.tasks.free import Free

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
    assert tight_tokens <= tokens * 1.06
