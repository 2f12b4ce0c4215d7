"""The tot suite: one search end to end, against two ways to write it over mlx-lm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from pie_mlx.bench import baseline, baseline_search
from pie_mlx.bench.cases import Case
from pie_mlx.bench.report import Row, Trials
from pie_mlx.bench.searching import Searched, SearchPrompts, SearchShape, search
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.errors import Fact

FULL = (SearchShape(600), SearchShape(2000))
QUICK = (SearchShape(40, breadth=2, beam=1, depth=2, thought_tokens=6),)

_MAX_TRIALS = {"prompts": 1, "copies": 3}
"""A search with copied caches takes its minute, and one of prompts many: their ratio is far beyond any noise."""

_WARM_UP = {"question_tokens": 48, "depth": 1, "thought_tokens": 4}
"""The warm-up is as wide as the search, but short: a whole one would double minutes."""

_ALONE = "copies"
_NAMES = {"prompts": "mlx-lm, every node a prompt", "copies": "mlx-lm, copied prompt caches"}


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases: each shape against each of the two ways to do without an engine."""
    return [
        Case("tot", f"{rival}: {shape.name}", partial(_measure, shape=shape, rival=rival))
        for shape in (QUICK if quick else FULL)
        for rival in _NAMES
    ]


def _measure(setting: BenchSetting, shape: SearchShape, rival: str) -> list[Row]:
    """Measure the search and one rival, interleaved; without a baseline there is one row of ours alone."""
    if not setting.options.has_baseline and rival != _ALONE:
        return []
    prompts = SearchPrompts.make(shape, setting.encoder)
    engine, module = setting.engine, setting.module
    rivals: dict[str, Callable[[SearchPrompts], Searched]] = {
        "prompts": lambda each: baseline_search.by_prompts(module, each, engine.facts.kv_bytes_per_token),
        "copies": lambda each: baseline_search.by_copies(module, each),
    }
    our_runs: list[Searched] = []
    their_runs: list[Searched] = []

    def our_trial() -> float:
        our_runs.append(search(engine, prompts))
        return our_runs[-1].wall_s

    def their_trial() -> float:
        their_runs.append(engine.run_errand(lambda: rivals[rival](prompts)))
        return their_runs[-1].wall_s

    short = SearchPrompts.make(replace(shape, **_WARM_UP), setting.encoder)
    search(engine, short)
    if setting.options.has_baseline:
        engine.run_errand(lambda: rivals[rival](short))
    num_trials = min(_MAX_TRIALS[rival], setting.options.num_trials)
    taken = setting.measure(our_trial, their_trial, num_trials=num_trials, is_warm=True)
    return [_row(setting, prompts, rival, taken, our_runs[-1], their_runs[-1] if their_runs else None)]


def _row(
    setting: BenchSetting,
    prompts: SearchPrompts,
    rival: str,
    taken: tuple[Trials, Trials | None],
    *runs: Searched | None,
) -> Row:
    """Return a row of seconds, with what both sides computed and held."""
    mine, theirs = runs
    assert mine is not None, "our side always runs"
    facts: dict[str, Fact] = {
        "prompt_tokens": len(prompts.root),
        "nodes": mine.num_nodes,
        "prefill_tokens": mine.prefill_tokens,
        "kv_bytes": mine.kv_bytes,
        **setting.attention(),
    }
    if theirs is None:
        return Row("tot", f"alone: {prompts.shape.name}", "s", *taken, higher_is_better=False, facts=facts)
    facts |= {
        "baseline_nodes": theirs.num_nodes,
        "baseline_prefill_tokens": theirs.prefill_tokens,
        "prefill_ratio": mine.prefill_tokens / theirs.prefill_tokens,
        "baseline_kv_bytes": theirs.kv_bytes,
        "kv_ratio": mine.kv_bytes / theirs.kv_bytes,
        "label_error": _label_error(setting, prompts, mine),
    }
    return Row("tot", f"{rival}: {prompts.shape.name}", "s", *taken, _NAMES[rival], higher_is_better=False, facts=facts)


def _label_error(setting: BenchSetting, prompts: SearchPrompts, run: Searched) -> float:
    """Return how far one score of our tree is from mlx-lm's, computed afresh from the node's whole sequence."""
    assert run.result is not None, "our side keeps its result"
    node = next(node for node in run.result.nodes if node.depth == 1 and node.score is not None)
    line = setting.encoder.encode(f"{prompts.task.lead(())} {node.text}")
    sequence = [*prompts.root, *line, *prompts.question]
    probs = setting.engine.run_errand(lambda: baseline.label_probs(setting.module, sequence, prompts.labels))
    return abs(prompts.value(probs) - (node.score or 0.0))
