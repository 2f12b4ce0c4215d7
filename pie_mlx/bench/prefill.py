"""The prefill suite: tokens a second into an empty context."""

from __future__ import annotations

from functools import partial

from pie_mlx.bench import baseline, ours
from pie_mlx.bench.cases import Case
from pie_mlx.bench.report import Row
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.bench.texts import prompt_of
from pie_mlx.errors import Fact

FULL = (128, 512, 1024, 2048, 4096)
"""Prompt lengths in tokens."""

QUICK = (48,)
"""One short prompt, for demonstrations and tests of the structure."""


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases."""
    lengths = QUICK if quick else FULL
    return [Case("prefill", f"prompt of {length:,} tokens", partial(_measure, length=length)) for length in lengths]


def _measure(setting: BenchSetting, length: int) -> list[Row]:
    """Measure one length; both sides compute K/V only, no logits."""
    prompt = prompt_of(setting.encoder, length)

    def their_trial() -> float:
        return length / setting.engine.run_errand(lambda: baseline.prefill(setting.module, prompt)[1])

    mine, theirs = setting.measure(lambda: length / ours.prefill(setting.engine, prompt), their_trial)
    facts: dict[str, Fact] = {
        "prompt_tokens": len(prompt),
        "chunk": setting.chunk,
        "baseline_chunk": baseline.PREFILL_CHUNK,
        **setting.attention(),
    }
    name = f"prompt of {length:,} tokens"
    return [Row("prefill", name, "tok/s", mine, theirs, "mlx-lm prefill" if theirs else None, facts=facts)]
