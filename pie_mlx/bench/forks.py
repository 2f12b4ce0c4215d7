"""The fork suite: how long a fork, a close and a truncation take, by length and by what else is open."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from pie_mlx.bench import baseline, ours
from pie_mlx.bench.cases import Case
from pie_mlx.bench.pairs import Measure
from pie_mlx.bench.report import Row, Trials
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.bench.texts import prompt_of
from pie_mlx.engine import Context
from pie_mlx.errors import Fact

FULL_LENGTHS, FULL_IDLE = (128, 512, 2048, 4096), 1000
QUICK_LENGTHS, QUICK_IDLE = (48,), 20
_REPEATS = 200
"""Forks timed in one trial: a clock cannot time a single one well."""


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases."""
    idle = QUICK_IDLE if quick else FULL_IDLE
    lengths = QUICK_LENGTHS if quick else FULL_LENGTHS
    by_length = [
        Case("fork", f"context of {length:,} tokens", partial(_by_length, length=length)) for length in lengths
    ]
    return [*by_length, Case("fork", f"beside {idle:,} idle contexts", partial(_beside_idle, num_idle=idle))]


@contextmanager
def _resident(setting: BenchSetting, length: int) -> Iterator[Context]:
    """Open a context whose ``length`` tokens are all in the pool."""
    prompt = prompt_of(setting.encoder, length)
    with setting.engine.context([*prompt, prompt[0]]) as root:
        root.prefill().result()
        root.truncate(length)
        yield root


def _fork_us(root: Context) -> float:
    """Return the microseconds of one fork."""
    started = time.perf_counter()
    forks = [root.fork() for _ in range(_REPEATS)]
    elapsed_s = time.perf_counter() - started
    for fork in forks:
        fork.close()
    return elapsed_s / _REPEATS * 1e6


def _close_us(root: Context) -> float:
    """Return the microseconds of closing one fork; its pages are free when the call returns."""
    forks = [root.fork() for _ in range(_REPEATS)]
    started = time.perf_counter()
    for fork in forks:
        fork.close()
    return (time.perf_counter() - started) / _REPEATS * 1e6


def _truncate_us(root: Context) -> float:
    """Return the microseconds of truncating a fork to half its length."""
    with ExitStack() as stack:
        forks = [stack.enter_context(root.fork()) for _ in range(_REPEATS)]
        half = root.num_tokens // 2
        started = time.perf_counter()
        for fork in forks:
            fork.truncate(half)
        return (time.perf_counter() - started) / _REPEATS * 1e6


def _by_length(setting: BenchSetting, length: int) -> list[Row]:
    """Time the three operations; a fork beside mlx-lm's own way to branch, a copied prompt cache."""
    rows = []
    with _resident(setting, length) as root:
        their_trial = None
        if setting.options.has_baseline:
            prompt = prompt_of(setting.encoder, length)
            cache = setting.engine.run_errand(lambda: baseline.prefill(setting.module, prompt)[0])

            def copy_us() -> float:
                return setting.engine.run_errand(lambda: baseline.branch_copy(cache)) * 1e6

            their_trial = copy_us
        mine, theirs = setting.measure(lambda: _fork_us(root), their_trial)
        name = "mlx-lm prompt cache, deep copy and first write" if theirs else None
        facts: dict[str, Fact] = {"prompt_tokens": length, "repeats": _REPEATS, "pages": root.pages.total}
        rows.append(_row(f"fork, {length:,} tokens", mine, facts, theirs, name))
        for what, trial in (("close", _close_us), ("truncate to half", _truncate_us)):
            taken, _ = setting.measure(partial(trial, root), None)
            rows.append(_row(f"{what}, {length:,} tokens", taken, facts))
    return rows


def _beside_idle(setting: BenchSetting, num_idle: int) -> list[Row]:
    """Time a fork and a decode step beside 1 and beside many idle contexts; the baseline is ours beside 1."""
    length, tokens = 128, setting.options.decode_tokens
    first = prompt_of(setting.encoder, 4, variant=100)[3]
    rows = []
    with _resident(setting, length) as root:

        def step_ms() -> float:
            return ours.decode(setting.engine, [root], [first], tokens).decode_s / (tokens - 1) * 1e3

        def beside_many(trial: Measure) -> float:
            with ExitStack() as stack:
                for _ in range(num_idle):
                    stack.enter_context(root.fork())
                return trial()

        facts: dict[str, Fact] = {"prompt_tokens": length, "idle_contexts": num_idle}
        trials: tuple[tuple[str, str, Measure], ...] = (
            ("fork", "µs", lambda: _fork_us(root)),
            ("decode step", "ms", step_ms),
        )
        for name, unit, trial in trials:
            many, few = setting.measure(partial(beside_many, trial), trial, is_mlx_lm=False)
            case = f"{name} beside {num_idle:,} idle contexts"
            rows.append(Row("fork", case, unit, many, few, "ours beside 1", higher_is_better=False, facts=facts))
    return rows


def _row(name: str, mine: Trials, facts: dict[str, Fact], theirs: Trials | None = None, by: str | None = None) -> Row:
    """Return a row of microseconds."""
    return Row("fork", name, "µs", mine, theirs, by, higher_is_better=False, facts=facts)
