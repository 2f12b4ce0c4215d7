"""What the bookkeeping costs, without a model: ``python tests/contention/costs.py``.

The fake device answers at once, so what is measured is the engine's own time: forks, closes, and the host's
part of a step.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.job import GenerateGoal
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.ids import ContextId
from pie_mlx.sampling import Sampling


def open_driver(pages: int, max_batch: int = 32) -> Driver:
    """Return an engine without a thread."""
    return Driver(FakeBackend(), EngineSettings(pool_pages=pages, page_size=16, max_batch=max_batch))


def ask(driver: Driver, context: ContextId, max_tokens: int) -> None:
    """Submit a greedy request."""
    driver.core.submit(context, GenerateGoal(max_tokens, Sampling(), frozenset()))


def resident(driver: Driver, kind: int, num_tokens: int) -> ContextId:
    """Open a context whose K/V is in the pool."""
    tokens = [kind % 256, kind // 256, *(at % 256 for at in range(num_tokens - 2))]
    sequence = driver.core.open(tokens, f"c{kind}")
    ask(driver, sequence.id, 0)
    driver.run()
    return sequence.id


def timed(work: Callable[[], object]) -> float:
    """Return the microseconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e6


def fork_and_close(num_tokens: int, repeats: int) -> tuple[float, float]:
    """Return the median microseconds of a fork and of a close of a long context."""
    driver = open_driver(2 * num_tokens // 16)
    root, forks, closes = resident(driver, 1, num_tokens), [], []
    for _ in range(repeats):
        child: list[ContextId] = []
        forks.append(timed(lambda kept=child: kept.append(driver.core.fork(root, "").id)))  # type: ignore[misc]
        closes.append(timed(lambda gone=child[0]: driver.core.close(gone)))  # type: ignore[misc]
    return statistics.median(forks), statistics.median(closes)


def thousand_forks(num_tokens: int) -> tuple[float, bool]:
    """Return the milliseconds of 1,000 forks closed in random order, and whether every page came back."""
    driver = open_driver(num_tokens)
    root = resident(driver, 1, num_tokens)
    free = driver.core.pool.num_free

    def work() -> None:
        children = [driver.core.fork(root, "").id for _ in range(1000)]
        random.Random(1).shuffle(children)
        for child in children:
            driver.core.close(child)

    return timed(work) / 1000, driver.core.pool.num_free == free


def step_us(rows: int, *, idle: int = 0, waiting: int = 0) -> float:
    """Return the median microseconds of the host's part of a decode step."""
    driver = open_driver(rows * 20 + idle * 4 + 64, max_batch=rows)
    for kind in range(idle):
        resident(driver, kind, 50)
    for kind in range(rows + waiting):
        sequence = driver.core.open([kind % 256] * 30, "")
        ask(driver, sequence.id, 200)
    stepper, host = driver.stepper, []
    for _ in range(150):
        started = time.perf_counter()
        work = stepper.next_step()
        planned = time.perf_counter()
        if work is None:
            break
        outcomes = driver.backend.step(work.segments)
        back = time.perf_counter()
        stepper.commit(work, outcomes)
        host.append((planned - started + time.perf_counter() - back) * 1e6)
    return statistics.median(host)


def reclaim_ms(idle: int) -> float:
    """Return the milliseconds until a request that needs half of a pool full of idle contexts has its first step."""
    driver = open_driver(idle * 4)
    for kind in range(idle):
        resident(driver, kind, 60)
    ask(driver, driver.core.open([1, 2, 3], "").id, 100)
    driver.step()
    ask(driver, driver.core.open([3] * (idle * 4 * 16 // 2), "").id, 1)
    return timed(driver.step) / 1000


def main() -> None:
    """Measure and write a table."""
    fork, close = fork_and_close(8000, 500)
    forks_ms, is_whole = thousand_forks(2000)
    rows = [
        ("fork, 8,000 tokens", f"{fork:.0f} us"),
        ("close, 8,000 tokens", f"{close:.0f} us"),
        ("1,000 forks of 2,000 tokens, closed at random", f"{forks_ms:.0f} ms, all pages back: {is_whole}"),
        ("step, host part, 1 row", f"{step_us(1):.0f} us"),
        ("step, host part, 32 rows", f"{step_us(32):.0f} us"),
        ("step, 32 rows, 1,000 idle contexts", f"{step_us(32, idle=1000):.0f} us"),
        ("step, 32 rows, 1,000 waiting requests", f"{step_us(32, waiting=1000):.0f} us"),
        ("taking half of 1,000 idle contexts' pages back", f"{reclaim_ms(1000):.0f} ms"),
    ]
    sys.stdout.write("".join(f"{name:<48} {value}\n" for name, value in rows))


if __name__ == "__main__":
    main()
