"""The step that follows is foreseen while one runs: it is a guess, right in steady decoding, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.job import GenerateGoal, LabelsGoal
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.sampling import Sampling

NO_STOP: frozenset[int] = frozenset()


def open_driver(backend: FakeBackend, pool_pages: int = 256) -> Driver:
    """Return an engine without a thread, whose pages hold eight tokens."""
    return Driver(backend, EngineSettings(pool_pages=pool_pages, page_size=8, prefix_cache=False))


def ask(driver: Driver, tokens: list[int], max_tokens: int) -> None:
    """Open a context and let it generate."""
    sequence = driver.core.open(tokens, "")
    driver.core.submit(sequence.id, GenerateGoal(max_tokens, Sampling(), NO_STOP))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8))
def test_steady_decoding_is_foreseen_to_the_last_token(shapes: list[tuple[int, int]]) -> None:
    """Every step of one token a row is foreseen: over page borders, and when a request reaches its last token."""
    backend = FakeBackend()
    driver = open_driver(backend)
    for kind, (length, max_tokens) in enumerate(shapes):
        ask(driver, [(kind * 31 + at) % 256 for at in range(length)], max_tokens)
    num_steps = driver.run()
    decoding = max(max_tokens for _length, max_tokens in shapes) - 1
    assert backend.num_foreseen == decoding
    assert backend.num_guesses == decoding
    assert num_steps == decoding + 1  # one step for all prompts, which fit into one chunk


def test_what_ends_unforeseen_makes_a_wrong_guess_and_nothing_else() -> None:
    """A stop token is not known before; the step after it is another one, and all answers are the same."""

    def run(stop_ids: frozenset[int]) -> tuple[list[int], FakeBackend]:
        backend = FakeBackend()
        driver = open_driver(backend)
        ask(driver, [1, 2, 3], 20)
        sequence = driver.core.open([7, 8, 9], "")
        job = driver.core.submit(sequence.id, GenerateGoal(20, Sampling(), stop_ids))
        driver.run()
        return job.tokens, backend

    whole, steady = run(NO_STOP)
    cut, surprised = run(frozenset({whole[5]}))
    assert cut == whole[: whole.index(whole[5])]
    assert steady.num_foreseen == 19
    assert (surprised.num_guesses, surprised.num_foreseen) == (19, 18)


@pytest.mark.parametrize("make", [lambda: FakeBackend(has_state=True), lambda: FakeBackend(window=16)])
def test_nothing_is_foreseen_where_a_step_changes_what_its_contexts_show(make: Callable[[], FakeBackend]) -> None:
    """Recurrent states are not known before, and a window lets pages go."""
    backend = make()
    driver = open_driver(backend)
    ask(driver, [1, 2, 3], 10)
    driver.run()
    assert backend.num_foreseen == 0


def test_nobody_guesses_beside_prompts_and_scores() -> None:
    """A label's step ends its request, and a prompt's next chunk is the scheduler's to cut."""
    backend = FakeBackend()
    driver = open_driver(backend)
    sequence = driver.core.open([1, 2, 3], "")
    driver.core.submit(sequence.id, LabelsGoal((4, 5)))
    ask(driver, [4, 5, 6], 1)
    driver.run()
    assert backend.num_guesses == 0


def test_a_guess_takes_no_page() -> None:
    """In a pool with no page left for the guess, the run goes on as if nobody had guessed."""
    backend = FakeBackend()
    driver = open_driver(backend, pool_pages=2)
    ask(driver, [1, 2, 3], 13)
    driver.run()
    assert driver.core.pool.num_held == 2
    assert backend.num_foreseen == 12
    driver.core.check()
