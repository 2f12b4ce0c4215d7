"""The decode suite: one stream, unrelated streams, and branches of a shared prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from pie_mlx.bench import baseline, ours
from pie_mlx.bench.baseline import Cache, Decoded
from pie_mlx.bench.cases import Case
from pie_mlx.bench.energy import measure_energy, why_unreadable
from pie_mlx.bench.report import Row
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.bench.texts import prompt_of
from pie_mlx.engine import Context
from pie_mlx.errors import Fact, InvalidParameter


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """``rows`` streams: branches of one prefix of ``prefix`` tokens, or as many unrelated prompts of that length."""

    rows: int
    prefix: int
    is_shared: bool

    @property
    def name(self) -> str:
        """How the report calls it."""
        if self.rows == 1:
            return f"1 stream, {self.prefix:,}-token context"
        if not self.is_shared:
            return f"{self.rows} unrelated contexts of {self.prefix:,} tokens"
        return f"{self.rows} branches of {self.prefix:,} shared tokens"

    def to_case(self) -> Case:
        """Return it as a case of the suite."""
        return Case("decode", self.name, lambda setting: [_measure(setting, self)])


_WIDTHS = (2, 4, 8, 16, 32)

FULL = (
    *(DecodeCase(1, length, is_shared=True) for length in (128, 512, 1024, 2048)),
    # Branches need a root: "no shared prefix" is the one token that every sequence begins with.
    *(DecodeCase(rows, prefix, is_shared=True) for prefix in (1, 512, 2048) for rows in _WIDTHS),
    *(DecodeCase(rows, 256, is_shared=False) for rows in _WIDTHS),
)
"""Every width and prefix."""

QUICK = (DecodeCase(1, 24, is_shared=True), DecodeCase(3, 24, is_shared=True), DecodeCase(2, 24, is_shared=False))
"""Tiny sizes, for demonstrations and tests of the structure."""


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases."""
    return [case.to_case() for case in (QUICK if quick else FULL)]


@dataclass(slots=True)
class _Sides:
    """What both sides start from, and every run they made."""

    roots: list[Context]
    caches: list[Cache]
    firsts: list[int]
    our_runs: list[Decoded] = field(default_factory=list)
    their_runs: list[Decoded] = field(default_factory=list)


def _measure(setting: BenchSetting, case: DecodeCase) -> Row:
    """Measure one case: tokens per second over all rows, and whether both sides decode the same tokens.

    Raises:
        InvalidParameter: the engine's batch is narrower than the case.
    """
    tokens, batch = setting.options.decode_tokens, setting.engine.settings.max_batch
    if case.rows > batch:
        raise InvalidParameter("max_batch", batch, f"at least {case.rows} for {case.name!r}")
    num_steps = case.rows * (tokens - 1)
    with ExitStack() as stack:
        sides = _prepare(setting, case, stack)

        def our_trial() -> float:
            sides.our_runs.append(ours.decode(setting.engine, sides.roots, sides.firsts, tokens))
            return num_steps / sides.our_runs[-1].decode_s

        def their_trial() -> float:
            run = setting.engine.run_errand(lambda: _baseline(setting, sides))
            sides.their_runs.append(run)
            return num_steps / run.decode_s

        ahead_before = setting.backend.inner.num_ahead
        mine, theirs = setting.measure(our_trial, their_trial)
        facts: dict[str, Fact] = {
            "rows": case.rows,
            "prompt_tokens": case.prefix,
            "decoded_tokens": tokens,
            "finish_reason": "length, every row",
            "forks": case.rows,
            "kv_bytes": sides.our_runs[-1].kv_bytes,
            "shared_pages": sides.our_runs[-1].shared_pages,
            "steps_built_ahead": setting.backend.inner.num_ahead - ahead_before,
            **setting.attention(),
            **_energy(lambda: ours.decode(setting.engine, sides.roots, sides.firsts, tokens), case.rows * tokens),
            "roofline_share": setting.roofline_share(sides.our_runs[-1].kv_bytes, case.rows / mine.median),
        }
    if theirs is None:
        return Row("decode", case.name, "tok/s", mine, None, facts=facts)
    their_bytes = sides.their_runs[-1].kv_bytes
    facts |= {
        "baseline_kv_bytes": their_bytes,
        "baseline_roofline_share": setting.roofline_share(their_bytes, case.rows / theirs.median),
        "equal_tokens": agreement(sides.our_runs[-1].tokens, sides.their_runs[-1].tokens),
    }
    name = "mlx-lm generate_step" if case.rows == 1 else "mlx-lm BatchGenerator"
    return Row("decode", case.name, "tok/s", mine, theirs, name, facts=facts)


def _energy(work: Callable[[], object], num_tokens: int) -> dict[str, Fact]:
    """Return the joules a token of one more run; nothing where the system does not tell."""
    if why_unreadable() is not None:
        return {}
    started = time.perf_counter()
    reading = measure_energy(work)
    elapsed_s = time.perf_counter() - started
    joules = None if reading.watts is None else reading.watts * elapsed_s / num_tokens
    return {"joules_per_token": joules, "no_energy_because": reading.why_not}


def _prepare(setting: BenchSetting, case: DecodeCase, stack: ExitStack) -> _Sides:
    """Prefill both sides with the same prompts; the last token of each row differs, so that branches part at once."""
    engine = setting.engine
    num_prompts = 1 if case.is_shared else case.rows
    prompts = [prompt_of(setting.encoder, case.prefix, variant=at) for at in range(num_prompts)]
    firsts = [prompt_of(setting.encoder, 4, variant=100 + at)[3] for at in range(case.rows)]
    roots = [stack.enter_context(engine.context([*prompt, firsts[0]])) for prompt in prompts]
    for root in roots:
        root.prefill().result()
        root.truncate(case.prefix)
    caches: list[Cache] = []
    if setting.options.has_baseline:
        caches = [engine.run_errand(partial(baseline.prefill, setting.module, prompt))[0] for prompt in prompts]
    copies = case.rows if case.is_shared else 1
    return _Sides(roots * copies, caches * copies, firsts)


def _baseline(setting: BenchSetting, sides: _Sides) -> Decoded:
    """Run mlx-lm's loop for this width."""
    tokens = setting.options.decode_tokens
    if len(sides.firsts) == 1:
        return baseline.decode_one(setting.module, sides.caches[0], sides.firsts[0], tokens)
    return baseline.decode_batch(setting.module, sides.caches, sides.firsts, tokens)


def agreement(mine: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the share of tokens on which both sides agree before their first difference, row by row."""
    equal = total = 0
    for our_row, their_row in zip(mine, theirs, strict=True):
        total += len(our_row)
        for left, right in zip(our_row, their_row, strict=True):
            if left != right:
                break
            equal += 1
    return equal / total
