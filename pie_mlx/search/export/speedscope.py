"""A profile for speedscope: where the tokens went by branch, and what was written at the same time."""

from __future__ import annotations

import heapq
import json

from pie_mlx.errors import Fact
from pie_mlx.search.export.story import Span, Story, label_of, one_line
from pie_mlx.search.node import NodeId

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
"""The format's own name for itself; it is written, never fetched."""


def to_speedscope(story: Story) -> str:
    """Return a profile: first tokens by branch, then one lane for each node written at the same time."""
    nodes = list(story.tree.walk())
    index = {node.id: i for i, node in enumerate(nodes)}
    frames: list[Fact] = [{"name": f"{node.id} {one_line(label_of(story, node), 60)}".rstrip()} for node in nodes]
    profiles: list[Fact] = [_tokens_profile(story, index)]
    profiles += [_lane_profile(number, lane, index) for number, lane in enumerate(_lanes(story.spans), start=1)]
    profile = {
        "$schema": SCHEMA,
        "exporter": "pie-mlx",
        "name": one_line(story.header.run, 80),
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": profiles,
    }
    return json.dumps(profile, allow_nan=False) + "\n"


def _tokens_profile(story: Story, index: dict[NodeId, int]) -> dict[str, Fact]:
    """Weigh each node, on the stack of its path, by the tokens that were computed for it."""
    samples: list[Fact] = []
    weights: list[Fact] = []
    stacks: dict[NodeId, list[Fact]] = {}
    total = 0
    for node in story.tree.walk():
        above = [] if node.parent is None else stacks[node.parent]
        stack: list[Fact] = [*above, index[node.id]]
        if node.children:
            stacks[node.id] = stack
        tokens = node.tokens
        weight = max(tokens.prompt - tokens.cached, 0) + tokens.completion + story.score_tokens.get(node.id, 0)
        if weight:
            samples.append(stack)
            weights.append(weight)
            total += weight
    return {
        "type": "sampled",
        "name": "tokens computed by branch",
        "unit": "none",
        "startValue": 0,
        "endValue": total,
        "samples": samples,
        "weights": weights,
    }


def _lanes(spans: tuple[Span, ...]) -> list[list[Span]]:
    """Deal the spans out to as few lanes as possible, so that none overlap in a lane."""
    lanes: list[list[Span]] = []
    free: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: (span.start_ns, span.end_ns)):
        if free and free[0][0] <= span.start_ns:
            _, lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(span)
        heapq.heappush(free, (span.end_ns, lane))
    return lanes


def _lane_profile(number: int, lane: list[Span], index: dict[NodeId, int]) -> dict[str, Fact]:
    """Open and close each node's frame when it was written."""
    events: list[Fact] = []
    for span in lane:
        events.append({"type": "O", "frame": index[span.node], "at": span.start_ns})
        events.append({"type": "C", "frame": index[span.node], "at": span.end_ns})
    return {
        "type": "evented",
        "name": f"lane {number}",
        "unit": "nanoseconds",
        "startValue": lane[0].start_ns,
        "endValue": lane[-1].end_ns,
        "events": events,
    }
