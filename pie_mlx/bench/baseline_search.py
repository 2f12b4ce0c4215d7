"""The same search without an engine, twice: what a programmer would write over mlx-lm today.

``by_prompts`` sends every node and every judgement as a prompt of its own through ``batch_generate``;
``by_copies`` keeps each living node's prompt cache and lets BatchGenerator go on from copies of it. Both batch a
whole level, as our search does, and both drop a node's cache as soon as nothing needs it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pie_mlx.bench import baseline
from pie_mlx.bench.baseline import Cache, CopyBatch
from pie_mlx.bench.searching import Searched, SearchPrompts


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of a baseline's tree."""

    tokens: tuple[int, ...]
    cache: Cache | None = None


def by_prompts(module: Any, prompts: SearchPrompts, kv_bytes_per_token: int) -> Searched:
    """Search with ``batch_generate`` alone; a judgement is the one token that the model says after the question."""
    shape = prompts.shape
    baseline.seed(shape.seed)
    started = time.perf_counter()
    frontier = [prompts.root]
    num_nodes = prefilled = longest = 0
    for level in range(shape.depth):
        asked = [node + prompts.leads[level] for node in frontier for _ in range(shape.breadth)]
        thoughts = baseline.write_prompts(module, asked, shape.thought_tokens, shape.temperature)
        children = [prompt + thought for prompt, thought in zip(asked, thoughts, strict=True)]
        questions = [child + prompts.question for child in children]
        verdicts = baseline.write_prompts(module, questions, 1, 0.0)
        values = [_worth(prompts, verdict[0]) for verdict in verdicts]
        num_nodes += len(children)
        prefilled += sum(map(len, asked)) + sum(map(len, questions))
        longest = max(longest, sum(map(len, questions)))
        frontier = [children[at] for at in _best(values, shape.beam)]
    return Searched(time.perf_counter() - started, num_nodes, prefilled, longest * kv_bytes_per_token)


def by_copies(module: Any, prompts: SearchPrompts) -> Searched:
    """Search with copied prompt caches; a judgement reads the probabilities of the labels."""
    shape = prompts.shape
    baseline.seed(shape.seed)
    started = time.perf_counter()
    writer, judge = CopyBatch(module, shape.temperature), CopyBatch(module, 0.0)
    # The last token of a sequence is always left to the next prompt: a generator must be fed something.
    cache, _seconds = baseline.prefill(module, prompts.root[:-1])
    frontier = [_Node(prompts.root, cache)]
    num_nodes, prefilled, most = 0, len(prompts.root) - 1, 0
    for level in range(shape.depth):
        parents = [node for node in frontier for _ in range(shape.breadth)]
        behind = parents[0].tokens[-1:] if level == 0 else ()
        asked = [behind + prompts.leads[level]] * len(parents)
        writer.peak_bytes = judge.peak_bytes = 0
        written = writer.write(_caches(parents), asked, shape.thought_tokens)
        children = [
            _Node(parent.tokens + prompts.leads[level] + row.tokens, row.cache)
            for parent, row in zip(parents, written, strict=True)
        ]
        # The parents' caches are not counted beside the batch: nothing needs them once it has its copies.
        most = max(most, writer.peak_bytes)
        verdicts = judge.write(_caches(children), [prompts.question] * len(children), 1, prompts.labels)
        most = max(most, _kept_bytes(children) + judge.peak_bytes)
        values = [prompts.value(verdict.labels) for verdict in verdicts]
        num_nodes += len(children)
        prefilled += sum(map(len, asked)) + len(prompts.question) * len(children)
        frontier = [children[at] for at in _best(values, shape.beam)]
    return Searched(time.perf_counter() - started, num_nodes, prefilled, most)


def _caches(nodes: Sequence[_Node]) -> list[Cache]:
    """Return the nodes' caches."""
    return [node.cache for node in nodes if node.cache is not None]


def _kept_bytes(nodes: Sequence[_Node]) -> int:
    """Return the bytes of the caches that nodes keep, each once."""
    distinct = {id(cache): cache for cache in _caches(nodes)}
    return sum(baseline.cache_bytes(cache) for cache in distinct.values())


def _worth(prompts: SearchPrompts, said: int) -> float:
    """Return the weight of the label that a verdict begins with; any other word is worth nothing."""
    return dict(zip(prompts.labels, prompts.weights, strict=True)).get(said, 0.0)


def _best(values: Sequence[float], num: int) -> list[int]:
    """Return the places of the best values, ties in order."""
    return sorted(range(len(values)), key=lambda at: -values[at])[:num]
