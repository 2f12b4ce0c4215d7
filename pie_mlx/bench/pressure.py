"""The pressure suite: the same search in pools of all, half and a quarter of the pages that it would like."""

from __future__ import annotations

from functools import partial

from pie_mlx.bench.cases import Case
from pie_mlx.bench.report import Row
from pie_mlx.bench.searching import Searched, SearchPrompts, SearchShape, search
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.errors import Fact

FULL = SearchShape(128, breadth=8, beam=2, depth=2, thought_tokens=32)
QUICK = SearchShape(24, breadth=4, beam=1, depth=2, thought_tokens=4)
SHARES = (0.5, 0.25)
_TRIALS = 3


def cases(*, quick: bool) -> list[Case]:
    """Return the suite's cases."""
    shape = QUICK if quick else FULL
    return [
        Case("pressure", f"{share:.0%} of the pages", partial(_measure, shape=shape, share=share)) for share in SHARES
    ]


def _measure(setting: BenchSetting, shape: SearchShape, share: float) -> list[Row]:
    """Measure a pool of ``share`` of the need against one of all of it."""
    prompts = SearchPrompts.make(shape, setting.encoder)
    page_bytes, page_size = setting.page_bytes(), setting.engine.settings.page_size
    need = search(setting.engine, prompts).kv_bytes // page_bytes
    per_level = [len(lead) + shape.thought_tokens for lead in prompts.leads]
    longest = len(prompts.root) + sum(per_level) + len(prompts.question)
    # One path must fit, and a page for the fork that is judged: less is refused, not slow.
    pages = max(int(need * share), -(-longest // page_size) + 2)
    runs: dict[str, list[Searched]] = {"small": [], "whole": []}
    with setting.twin_engine(pages) as small, setting.twin_engine(need) as whole:
        engines = {"small": small, "whole": whole}

        def trial(name: str) -> float:
            runs[name].append(search(engines[name], prompts))
            return runs[name][-1].wall_s

        taken = setting.measure(
            lambda: trial("small"),
            lambda: trial("whole"),
            num_trials=min(_TRIALS, setting.options.num_trials),
            is_mlx_lm=False,
        )
        counters = small.readings().counters
    same = agreeing_nodes(runs["small"][-1], runs["whole"][-1])
    facts: dict[str, Fact] = {
        "prompt_tokens": len(prompts.root),
        "need_pages": need,
        "pool_pages": pages,
        "pool_share": pages / need,
        "nodes": shape.num_nodes,
        "same_nodes": same,
        "preemptions": counters.get("preemptions", 0),
        "evictions": counters.get("evictions", 0),
        "prefill_tokens": runs["small"][-1].prefill_tokens,
        "baseline_prefill_tokens": runs["whole"][-1].prefill_tokens,
    }
    name = f"{share:.0%} of the pages; {shape.name}"
    return [Row("pressure", name, "s", *taken, "ours, all pages", higher_is_better=False, facts=facts)]


def agreeing_nodes(one: Searched, other: Searched) -> float:
    """Return the share of nodes that have the same text and the same end in both trees; 1.0 is the same tree."""
    assert one.result is not None, "our side keeps its result"
    assert other.result is not None, "our side keeps its result"
    told = {node.id: (node.text, node.status) for node in one.result.nodes}
    other_told = {node.id: (node.text, node.status) for node in other.result.nodes}
    equal = sum(told.get(node) == what for node, what in other_told.items())
    return equal / max(len(told), len(other_told))
