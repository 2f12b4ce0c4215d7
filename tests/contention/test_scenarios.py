"""Contention: each scenario has a contract of what must complete, what may fail, and how many steps it may take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from pie_mlx.backend.fake import sequence_hash
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.job import GenerateGoal, Job, Phase
from pie_mlx.engine.sequence import Sequence
from pie_mlx.errors import Cancelled, Hog, Impossible
from pie_mlx.sampling import Sampling, mix

MakeDriver = Callable[..., Driver]
GREEDY = Sampling()


def prompt(kind: int, count: int) -> list[int]:
    """Return a text of ``count`` tokens that is all its own."""
    return [(kind * 31 + at * 7 + kind * at) % 256 for at in range(count)]


def answer(tokens: list[int], count: int) -> list[int]:
    """Return what the fake device generates after ``tokens``: the roomy pool's result, without any pool."""
    sequence = tokens.copy()
    for _ in range(count):
        sequence.append(mix(sequence_hash(sequence)) % 256)
    return sequence[len(tokens) :]


def ask(driver: Driver, sequence: Sequence, max_tokens: int) -> Job:
    """Submit a generating request."""
    return driver.core.submit(sequence.id, GenerateGoal(max_tokens, GREEDY, frozenset()))


def run_checked(driver: Driver, max_steps: int, every: int = 16) -> int:
    """Step to the end within ``max_steps``, checking the records along the way."""
    steps = 0
    while driver.step():
        steps += 1
        assert steps <= max_steps, f"{len(driver.core.jobs)} requests are left after {steps} steps"
        if steps % every == 0:
            driver.core.check()
    driver.core.check()
    return steps


def assert_done(jobs: Iterable[Job], prompts: Iterable[list[int]], max_tokens: int) -> None:
    """Every request completed, with the tokens that a roomy pool gives."""
    for job, tokens in zip(jobs, prompts, strict=True):
        assert job.error is None
        assert job.reason == "length"
        assert job.tokens == answer(tokens, max_tokens)


def assert_all_free(driver: Driver) -> None:
    """After everything is closed and the cache is cleared, every page is free."""
    for context in list(driver.core.sequences):
        driver.core.close(context)
    driver.core.index.clear()
    driver.core.check()
    assert driver.core.pool.num_free == driver.core.pool.num_pages


@pytest.mark.parametrize("factor", [4, 16])
def test_oversubscribed(drive: MakeDriver, factor: int) -> None:
    """Four and sixteen times as many requests as fit: all complete with the roomy pool's tokens."""
    pages, per_request = 64, 6
    count = pages * factor // per_request
    driver = drive(pages)
    prompts = [prompt(kind, 60) for kind in range(count)]
    jobs = [ask(driver, driver.core.open(tokens, ""), 30) for tokens in prompts]
    steps = run_checked(driver, max_steps=count * 32)
    assert_done(jobs, prompts, 30)
    assert driver.core.counters["evictions"] > 0, "spent contexts made room"
    assert steps < count * 31, "requests ran side by side"
    assert_all_free(driver)


def test_tiny_pool_serves_one_after_the_other(drive: MakeDriver) -> None:
    """A pool that holds one request at a time is slower, with the same result."""
    driver = drive(5)
    prompts = [prompt(kind, 50) for kind in range(20)]
    jobs = [ask(driver, driver.core.open(tokens, ""), 20) for tokens in prompts]
    run_checked(driver, max_steps=20 * 40)
    assert_done(jobs, prompts, 20)
    assert_all_free(driver)


@pytest.mark.parametrize("cache", [True, False])
def test_all_share_one_prefix(drive: MakeDriver, cache: bool) -> None:
    """Forty forks of one prefix that fills most of the pool: shared pages are not counted as reclaimable."""
    driver = drive(32, prefix_cache=cache)
    root = driver.core.open(prompt(1, 20 * 16 + 5), "root")
    ask(driver, root, 0)
    driver.run()
    forks = [driver.core.fork(root.id, f"fork {at}") for at in range(40)]
    for at, fork in enumerate(forks):
        driver.core.append(fork.id, [at])
    prompts = [fork.tokens.copy() for fork in forks]
    jobs = [ask(driver, fork, 40) for fork in forks]
    run_checked(driver, max_steps=40 * 60)
    assert_done(jobs, prompts, 40)
    assert_all_free(driver)


def test_what_is_shared_already_is_not_asked_for_again(drive: MakeDriver) -> None:
    """Four requests whose prompts begin like a running one's fit beside it, though five whole prompts would not."""
    driver = drive(40, max_batch=8)
    shared = prompt(1, 20 * 16)
    prompts = [[*shared, *prompt(kind, 10)] for kind in range(2, 7)]
    first = ask(driver, driver.core.open(prompts[0], "first"), 60)
    while not first.tokens:
        driver.step()
    jobs = [first, *(ask(driver, driver.core.open(tokens, ""), 30) for tokens in prompts[1:])]
    driver.step()
    assert [job.phase.is_running for job in jobs] == [True] * 5, "all start at once"
    run_checked(driver, max_steps=80)
    assert [job.tokens for job in jobs] == [answer(prompts[0], 60), *(answer(tokens, 30) for tokens in prompts[1:])]
    assert [job.cached_tokens for job in jobs[1:]] == [320] * 4
    assert driver.core.counters["preemptions"] == 0
    assert_all_free(driver)


def test_a_blocked_request_does_not_drop_its_own_prefix(drive: MakeDriver) -> None:
    """It takes the cached pages that it has no use for, though those that it will view were used less recently."""
    driver = drive(47, prefix_cache_share=1.0)
    shared = prompt(1, 20 * 16 + 1)
    for tokens in (shared, prompt(4, 3 * 16 + 1)):
        spent = driver.core.open(tokens, "spent")
        ask(driver, spent, 0)
        driver.run()
        driver.core.close(spent.id)
    older = ask(driver, driver.core.open(prompt(2, 18 * 16 + 8), "older"), 20)
    while not older.tokens:
        driver.step()
    assert (driver.core.pool.num_free, driver.core.index.num_cached()) == (5, 23)
    younger_prompt = [*shared[:-1], *prompt(3, 5 * 16)]
    younger = ask(driver, driver.core.open(younger_prompt, "younger"), 5)
    driver.step()
    assert younger.phase.is_running, "two cached pages of somebody else's were what it lacked"
    assert younger.cached_tokens == 320
    run_checked(driver, max_steps=80)
    assert older.tokens == answer(prompt(2, 18 * 16 + 8), 20)
    assert younger.tokens == answer(younger_prompt, 5)
    assert_all_free(driver)


def test_hog_is_refused_and_the_others_go_on(drive: MakeDriver) -> None:
    """A context that wants more than the pool gets its typed error at once; everybody else completes."""
    driver = drive(16)
    hog = ask(driver, driver.core.open(prompt(99, 100), "hog"), 10_000)
    prompts = [prompt(kind, 40) for kind in range(12)]
    jobs = [ask(driver, driver.core.open(tokens, ""), 20) for tokens in prompts]
    run_checked(driver, max_steps=16 * 16 + 12 * 40)
    assert isinstance(hog.error, Hog)
    assert hog.error.held_pages == hog.error.total_pages == 16
    assert len(hog.tokens) > 100, "it ran as long as it could"
    assert_done(jobs, prompts, 20)


def test_impossible_ask_blocks_nobody(drive: MakeDriver) -> None:
    """A prompt larger than the pool is refused by submit, and the requests around it complete."""
    driver = drive(16)
    first = ask(driver, driver.core.open(prompt(1, 60), ""), 20)
    with pytest.raises(Impossible) as caught:
        ask(driver, driver.core.open(prompt(2, 16 * 16 + 1), ""), 20)
    assert (caught.value.need_pages, caught.value.total_pages) == (17, 16)
    last = ask(driver, driver.core.open(prompt(3, 60), ""), 20)
    run_checked(driver, max_steps=60)
    assert_done([first, last], [prompt(1, 60), prompt(3, 60)], 20)


def test_churn_of_thousands(drive: MakeDriver) -> None:
    """Three thousand short requests come and go: nothing is kept of those that are over."""
    driver = drive(48)
    left, live = 3000, []
    rng = random.Random(5)
    while left or driver.core.jobs:
        while left and len(driver.core.jobs) < 40:
            left -= 1
            tokens = prompt(rng.randrange(200), rng.randrange(1, 60))
            sequence = driver.core.open(tokens, "")
            live.append((sequence, tokens, ask(driver, sequence, 6)))
        driver.step()
        for sequence, tokens, job in [entry for entry in live if entry[2].phase.is_over]:
            assert job.tokens == answer(tokens, 6)
            driver.core.close(sequence.id)
        live = [entry for entry in live if not entry[2].phase.is_over]
    assert driver.core.counters["completed"] == 3000
    assert not driver.core.jobs
    assert not driver.core.sequences
    assert driver.core.index.num_cached() == driver.core.pool.num_held
    assert_all_free(driver)


def test_cascade_of_forks(drive: MakeDriver) -> None:
    """A tree of forks of forks, the spent parents left open: the pool is far too small for all of it at once."""
    driver = drive(40)
    root = driver.core.open(prompt(1, 70), "root")
    frontier = [root]
    count = 0
    for level in range(4):
        children = []
        for node in frontier:
            for branch in range(3):
                child = driver.core.fork(node.id, f"{level}.{branch}")
                driver.core.append(child.id, [level * 3 + branch + 1])
                children.append((child, child.tokens.copy(), ask(driver, child, 20)))
        run_checked(driver, max_steps=len(children) * 60)
        for _child, tokens, job in children:
            assert job.tokens == answer(tokens, 20)
        count += len(children)
        frontier = [child for child, _tokens, _job in children[:9]]
    assert driver.core.counters["completed"] == count == 3 + 9 + 27 + 27
    assert_all_free(driver)


def test_cancel_storm(drive: MakeDriver) -> None:
    """Half of the requests are cancelled at random moments in every phase; the others complete."""
    driver = drive(40, prefill_chunk=32)
    rng = random.Random(3)
    prompts = [prompt(kind, rng.randrange(20, 90)) for kind in range(120)]
    jobs = [ask(driver, driver.core.open(tokens, ""), 25) for tokens in prompts]
    doomed, phases = set(jobs[::2]), set()
    steps = 0
    while driver.core.jobs:
        for job in [job for job in driver.core.jobs.values() if job in doomed and rng.random() < 0.05]:
            phases.add(job.phase)
            driver.core.end(job, Phase.CANCELLED, error=Cancelled())
        driver.step()
        driver.core.check()
        steps += 1
        assert steps < 120 * 40
    assert {Phase.WAITING, Phase.PREFILLING, Phase.DECODING} <= phases
    for job, tokens in zip(jobs, prompts, strict=True):
        expected = answer(tokens, len(job.tokens))
        assert job.tokens == expected
        assert (job.error is None) == (len(job.tokens) == 25)
    assert all(job.error is None for job in jobs[1::2])
    assert_all_free(driver)


def test_restore_under_load(drive: MakeDriver) -> None:
    """Evicted contexts are asked again while others run: recomputed, they answer as if they never were."""
    driver = drive(24)
    first = [driver.core.open(prompt(kind, 64), f"old {kind}") for kind in range(6)]
    old = [(sequence, ask(driver, sequence, 10)) for sequence in first]
    driver.run()
    crowd = [ask(driver, driver.core.open(prompt(100 + kind, 64), ""), 30) for kind in range(12)]
    for _ in range(5):
        driver.step()
    assert driver.core.counters["evictions"] > 0
    texts = [sequence.tokens.copy() for sequence, _job in old]
    again = [ask(driver, sequence, 30) for sequence, _job in old]
    run_checked(driver, max_steps=18 * 60)
    assert_done(again, texts, 30)
    assert all(job.error is None for job in crowd)


def test_preempted_requests_are_restored(drive: MakeDriver) -> None:
    """Requests that grow together over the pool's size are preempted youngest first, and all complete."""
    driver = drive(20)
    prompts = [prompt(kind, 17) for kind in range(8)]
    jobs = [ask(driver, driver.core.open(tokens, ""), 100) for tokens in prompts]
    run_checked(driver, max_steps=8 * 200, every=1)
    assert_done(jobs, prompts, 100)
    assert jobs[0].num_preemptions == 0, "the oldest is never a victim"
    assert sum(job.num_preemptions for job in jobs) > 0
    assert_all_free(driver)


def test_one_that_fits_waits_behind_one_that_does_not(drive: MakeDriver) -> None:
    """Free pages are kept for the head: the small request behind it does not starve it by coming first."""
    driver = drive(20)
    running = ask(driver, driver.core.open(prompt(1, 16 * 10), ""), 60)
    driver.step()
    large = ask(driver, driver.core.open(prompt(2, 16 * 15), ""), 5)
    small = [ask(driver, driver.core.open(prompt(3 + kind, 5), ""), 40) for kind in range(30)]
    while not running.phase.is_over:
        driver.step()
        assert all(job.phase is Phase.WAITING for job in small), "pages of the head went to a younger request"
    driver.run()
    ends = [job.ended_s for job in (large, *small) if job.error is None and job.ended_s is not None]
    assert len(ends) == 31
    assert ends[0] == min(ends)


def test_mixed_heads(drive: MakeDriver) -> None:
    """Long and short prompts, short and long answers, forks and fresh ones: all complete, none twice."""
    driver = drive(48, prefill_chunk=48, max_batch=8)
    rng = random.Random(11)
    jobs, prompts, sizes = [], [], []
    for kind in range(80):
        parent = rng.choice(list(driver.core.sequences.values())) if kind and rng.random() < 0.4 else None
        if parent is not None and len(parent.tokens) < 200:
            sequence = driver.core.fork(parent.id, "")
            driver.core.append(sequence.id, prompt(kind, 3))
        else:
            sequence = driver.core.open(prompt(kind, rng.choice([1, 15, 16, 17, 47, 48, 49, 300])), "")
        prompts.append(sequence.tokens.copy())
        sizes.append(rng.choice([1, 2, 16, 60]))
        jobs.append(ask(driver, sequence, sizes[-1]))
        for _ in range(rng.randrange(4)):
            driver.step()
    run_checked(driver, max_steps=80 * 120)
    for job, tokens, size in zip(jobs, prompts, sizes, strict=True):
        assert job.error is None
        assert job.tokens == answer(tokens, size)


def test_nearly_full_pool_keeps_moving(drive: MakeDriver) -> None:
    """A pool that idle contexts fill to 95 % and more serves request after request without a pause."""
    driver = drive(100)
    for kind in range(19):
        ask(driver, driver.core.open(prompt(kind, 16 * 5), ""), 0)
    driver.run()
    assert driver.core.pool.num_free <= 5
    for kind in range(200):
        tokens = prompt(50 + kind, 30)
        job = ask(driver, driver.core.open(tokens, ""), 12)
        assert driver.run() <= 14
        assert job.tokens == answer(tokens, 12)
        driver.core.check()


def test_pinned_pages_are_waited_for_and_used_when_unpinned(drive: MakeDriver) -> None:
    """A request blocked by a pinned context waits without an end of its own, and goes on when it is unpinned."""
    driver = drive(10)
    pinned = driver.core.open(prompt(1, 100), "pinned")
    ask(driver, pinned, 0)
    driver.run()
    pinned.pinned = True
    job = ask(driver, driver.core.open(prompt(2, 40), ""), 40)
    driver.run()
    assert job.phase is Phase.DECODING
    assert driver.stepper.head is not None
    assert driver.stepper.head.request == job.id
    pinned.pinned = False
    driver.run()
    assert job.tokens == answer(prompt(2, 40), 40)


def test_own_pinned_context_is_no_reason_to_wait(drive: MakeDriver) -> None:
    """A pinned context that outgrows the pool alone is a hog at once: nobody could make room for it."""
    driver = drive(4)
    sequence = driver.core.open(prompt(1, 20), "")
    sequence.pinned = True
    job = ask(driver, sequence, 1000)
    driver.run()
    assert isinstance(job.error, Hog)


@pytest.mark.parametrize("page", [8, 16])
def test_holes_left_by_forks_are_closed(drive: MakeDriver, page: int) -> None:
    """A context whose forks made it start many pages early is compacted by recomputing, before it is refused."""
    driver = drive(6, page_size=page, prefix_cache=False)
    sequence = driver.core.open(prompt(1, 3), "")
    expected = answer(prompt(1, 3), 5 * page)
    for _ in range(5 * page):
        fork = driver.core.fork(sequence.id, "")
        other = ask(driver, fork, 1)
        job = ask(driver, sequence, 1)
        driver.run()
        assert job.error is None
        assert other.error is None
        driver.core.close(fork.id)
    assert sequence.tokens[3:] == expected
    driver.core.check()
