"""A task as a run plays it: states by node, what a thought means, what is finished, what is answered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pie_mlx.search.dialogue import join_line
from pie_mlx.search.node import ROOT, NodeId, parent_id
from pie_mlx.search.tasks.base import Check, Rejected, Task
from pie_mlx.search.trace_events import Verdict


def without_echo(lead: str, text: str) -> str:
    """Return a thought without the lead's own words at its start, which small models like to say again."""
    words = lead.rpartition("\n")[2].strip().rstrip(":.)")
    if not words:
        return text
    echo = re.match(rf"(?:[*_#>\s]*{re.escape(words)}[*_]*\s*[:.)][*_]*(?:\s+|$))+", text, re.IGNORECASE)
    return text if echo is None else text[echo.end() :].strip()


@dataclass(frozen=True, slots=True)
class Position:
    """Where a node stands: the task's state, and how the path is told."""

    state: object
    depth: int
    text: str
    """The lead and the thought of this node, as they stand in the reply."""
    answer: str | None = None
    """What a finished node answers."""
    terminal: bool = False
    """Whether nothing follows it: it is a candidate for the answer."""
    check: Check | None = None
    """The exact checker's word on the answer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the task makes of a thought."""

    text: str
    verdict: Verdict
    reason: str = ""
    position: Position | None = None
    """None where the verdict is not ok."""
    key: str = ""


class Rules:
    """Plays one task: reads thoughts into positions and remembers the position of every node."""

    def __init__(self, task: Task[Any], depth: int | None, *, use_truth: bool = False) -> None:
        """Play ``task``, cut at ``depth`` levels (None: its own)."""
        self.task = task
        self.steers_by_check = use_truth or not task.check_knows_answer
        """Whether the check may steer the search: one that compares with a known answer may only on purpose."""
        self.depth = task.depth if depth is None else depth
        self._positions: dict[NodeId, Position] = {ROOT: Position(task.start(), 0, "")}

    def __getitem__(self, node: NodeId) -> Position:
        """Return a node's position."""
        return self._positions[node]

    def __contains__(self, node: NodeId) -> bool:
        """Whether a node has a position: its thought could be read."""
        return node in self._positions

    def place(self, node: NodeId, position: Position) -> None:
        """Remember a node's position; a new one replaces the old."""
        self._positions[node] = position

    def writes_answer(self, node: NodeId) -> bool:
        """Whether what follows a node is the answer, written from the thoughts."""
        here = self[node]
        if here.terminal or not (here.depth >= self.depth or self.task.is_finished(here.state)):
            return False
        return self.task.synthesis(here.state) is not None

    def may_grow(self, node: NodeId) -> bool:
        """Whether a node may have children."""
        if node not in self:
            return False
        here = self[node]
        if here.terminal:
            return False
        return (here.depth < self.depth and not self.task.is_finished(here.state)) or self.writes_answer(node)

    def lead(self, node: NodeId) -> str:
        """Return what the task writes before the thought that follows ``node``."""
        here = self[node]
        synthesis = self.task.synthesis(here.state) if self.writes_answer(node) else None
        return self.task.lead(here.state) if synthesis is None else synthesis

    def read(self, parent: NodeId, text: str) -> Reading:
        """Read the thought that follows ``parent``."""
        here = self[parent]
        lead = self.lead(parent)
        clean = without_echo(lead, text.strip())
        told = join_line(lead, clean)
        if self.writes_answer(parent):
            return self._read_answer(here, clean, told)
        if not clean:
            return Reading(clean, Verdict.UNPARSED, "empty")
        state = self.task.step(here.state, clean)
        if isinstance(state, Rejected):
            return Reading(clean, state.verdict, state.reason)
        answer = self.task.answer(state) if self.task.is_finished(state) else None
        check = None if answer is None else self.task.check(answer)
        is_open = answer is None and self.task.synthesis(state) is not None
        terminal = self.task.is_finished(state) and not is_open
        position = Position(state, here.depth + 1, told, answer, terminal, check)
        return Reading(clean, Verdict.OK, "", position, self.task.key(state))

    def _read_answer(self, here: Position, clean: str, told: str) -> Reading:
        """Read an answer that was written from the thoughts; an empty one is none."""
        if not clean:
            return Reading(clean, Verdict.UNPARSED, "empty answer")
        position = Position(here.state, here.depth + 1, told, clean, True, self.task.check(clean))
        return Reading(clean, Verdict.OK, "", position)

    def path_text(self, node: NodeId) -> str:
        """Return the whole reply up to ``node``: leads and thoughts."""
        return "".join(self.path_lines(node))

    def path_lines(self, node: NodeId) -> list[str]:
        """Return the reply up to ``node``, one item a node, as it is encoded."""
        lines: list[str] = []
        at: NodeId | None = node
        while at is not None and at != ROOT:
            lines.append(self[at].text)
            at = parent_id(at)
        return lines[::-1]

    def solved(self, node: NodeId) -> bool | None:
        """Whether a finished node is right; None where it is not finished or the task cannot tell."""
        check = self[node].check if node in self else None
        return None if check is None else check.solved

    def answer_key(self, node: NodeId) -> str | None:
        """Return the form of a node's answer that votes compare; None where it has none."""
        answer = self[node].answer if node in self else None
        return None if answer is None else self.task.answer_key(answer)
