"""The decode suite: one stream, unrelated streams, and branches of a shared prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pie_mlx.bench import baseline, ours
from pie_mlx.bench.baseline import Cache, Decoded
from pie_mlx.bench.pairs import interleave
from pie_mlx.bench.report import Row
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.bench.texts import prompt_of

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DecodeCase:
    """``rows`` streams: branches of one prefix of ``prefix`` tokens, or as many unrelated prompts of that length."""

    rows: int
    prefix: int
    is_shared: bool

    @property
    def name(self) -> str:
        """How the report calls it."""
        kind = "branches of" if self.is_shared else "unrelated"
        if self.rows == 1:
            return f"1 stream, {self.prefix:,}-token context"
        return f"{self.rows} {kind} {self.prefix:,} tokens"


QUICK = (
    DecodeCase(1, 128, is_shared=True),
    DecodeCase(1, 1024, is_shared=True),
    DecodeCase(16, 256, is_shared=False),
    DecodeCase(16, 512, is_shared=True),
    DecodeCase(16, 2048, is_shared=True),
)
"""The cases whose figures the documentation promises."""

FULL = tuple(
    DecodeCase(rows, prefix, is_shared=True) for prefix in (1, 512, 2048) for rows in (1, 2, 4, 8, 16, 32)
) + tuple(DecodeCase(rows, 256, is_shared=False) for rows in (2, 4, 8, 16, 32))
"""Every width and prefix."""


def run(setting: BenchSetting, cases: Sequence[DecodeCase], progress: Progress) -> Iterator[Row]:
    """Measure each case: tokens per second over all rows, ours and mlx-lm's in turn."""
    for case in cases:
        progress(f"decode: {case.name}")
        yield _measure(setting, case)


def _measure(setting: BenchSetting, case: DecodeCase) -> Row:
    """Measure one case, and check that both sides decode the same tokens."""
    engine, tokens = setting.engine, setting.decode_tokens
    prompts = [prompt_of(setting.encoder, case.prefix, variant=at) for at in range(1 if case.is_shared else case.rows)]
    firsts = [prompt_of(setting.encoder, 4, variant=100 + at)[3] for at in range(case.rows)]
    ours_runs: list[Decoded] = []
    their_runs: list[Decoded] = []
    with ExitStack() as stack:
        roots = [stack.enter_context(engine.context([*prompt, firsts[0]])) for prompt in prompts]
        for root in roots:
            root.prefill().result()
            root.truncate(case.prefix)
        caches: list[Cache] = [
            engine.run_errand(lambda prompt=prompt: baseline.prefill(setting.module, prompt, setting.chunk)[0])
            for prompt in prompts
        ]
        spread_roots = roots * case.rows if case.is_shared else roots
        spread_caches = caches * case.rows if case.is_shared else caches

        def our_trial() -> float:
            ours_runs.append(ours.decode(engine, spread_roots, firsts, tokens))
            return case.rows * (tokens - 1) / ours_runs[-1].decode_s

        def their_trial() -> float:
            their_runs.append(engine.run_errand(lambda: _baseline(setting, spread_caches, firsts)))
            return case.rows * (tokens - 1) / their_runs[-1].decode_s

        mine, theirs = interleave(
            our_trial, their_trial if setting.has_baseline else None, num_trials=setting.num_trials, delay_s=setting.delay_s
        )
    facts = {
        "rows": case.rows,
        "prefix_tokens": case.prefix,
        "decoded_tokens": tokens,
        "kv_bytes": ours_runs[-1].kv_bytes,
        "attention": setting.attention_path(),
    }
    if their_runs:
        facts |= {
            "baseline_kv_bytes": their_runs[-1].kv_bytes,
            "equal_tokens": _agreement(ours_runs[-1], their_runs[-1]),
        }
    name = None if theirs is None else "mlx-lm generate_step" if case.rows == 1 else "mlx-lm BatchGenerator"
    return Row("decode", case.name, "tok/s", mine, theirs, name, facts=facts)


def _baseline(setting: BenchSetting, caches: Sequence[Cache], firsts: Sequence[int]) -> Decoded:
    """Run mlx-lm's loop for this width."""
    if len(firsts) == 1:
        return baseline.decode_one(setting.module, caches[0], firsts[0], setting.decode_tokens)
    return baseline.decode_batch(setting.module, caches, firsts, setting.decode_tokens)


def _agreement(mine: Decoded, theirs: Decoded) -> float:
    """Return the share of tokens on which both sides agree before their first difference, row by row."""
    equal = total = 0
    for ours_row, their_row in zip(mine.tokens, theirs.tokens, strict=True):
        total += len(ours_row)
        for left, right in zip(ours_row, their_row, strict=True):
            if left != right:
                break
            equal += 1
    return equal / total
