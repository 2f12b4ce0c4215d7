"""One JSON object of a whole run: header, outcome, measures, nodes with parent links, and the page curve."""

from __future__ import annotations

import json

from pie_mlx.errors import Fact
from pie_mlx.search.export.story import Story
from pie_mlx.search.node import Node

SCHEMA = "pie-mlx.tot-export/1"


def to_json_text(story: Story) -> str:
    """Return the run as indented JSON."""
    return json.dumps(as_json(story), indent=1, allow_nan=False) + "\n"


def as_json(story: Story) -> dict[str, Fact]:
    """Return the run as JSON."""
    outcome, start = story.tree.outcome, story.start
    return {
        "schema": SCHEMA,
        "header": story.header.to_json(),
        "question": story.question,
        "strategy": "" if start is None else start.strategy,
        "scorer": "" if start is None else start.scorer,
        "oracle": start is not None and start.oracle,
        "torn": story.torn,
        "outcome": None
        if outcome is None
        else {
            "reason": outcome.reason,
            "answer": outcome.answer,
            "solved": outcome.solved,
            "node": outcome.node,
            "error": outcome.error,
        },
        "best_path": [node.id for node in story.best_path],
        "metrics": story.metrics.to_json(),
        "alarms": list(story.tree.alarms),
        "notices": list(story.tree.notices),
        "nodes": [node_json(node) for node in story.tree.walk()],
        "pages": [
            {
                "t_ns": reading.t_ns,
                "free": reading.pool.free,
                "private": reading.pool.private,
                "shared": reading.pool.shared,
                "cached": reading.pool.cached,
                "evicted": reading.pool.evicted,
                "viewed": reading.pool.viewed,
            }
            for reading in story.readings
        ],
    }


def node_json(node: Node) -> dict[str, Fact]:
    """Return one node; ``score`` is the ranking value, ``scores`` all of them."""
    return {
        "id": node.id,
        "parent": node.parent,
        "depth": node.depth,
        "text": node.text,
        "reasoning": node.reasoning,
        "status": node.status.value,
        "score": node.value,
        "scores": [score.to_json() for score in node.scores.values()],
        "finish": node.finish,
        "reason": node.reason,
        "seed": node.seed,
        "key": node.key,
        "duplicate_of": node.duplicate_of,
        "locked": node.locked,
        "tokens": {
            "prompt": node.tokens.prompt,
            "cached": node.tokens.cached,
            "completion": node.tokens.completion,
        },
        "pages": {"total": node.pages.total, "shared": node.pages.shared},
    }
