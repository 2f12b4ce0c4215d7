"""What a run cost and reached, from its events; and how good a scorer is where the truth is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pie_mlx.errors import Fact, InvalidParameter
from pie_mlx.search.node import NodeStatus, TokenCounts, plain
from pie_mlx.search.replay import apply
from pie_mlx.search.trace_events import (
    AlarmRaised,
    Event,
    Finished,
    NodeDone,
    PagesRead,
    Pruned,
    Scored,
    Verdict,
)
from pie_mlx.search.tree import ROOT, PoolCounts, Tree

EXACT_KINDS = frozenset({"exact"})
"""Score kinds that are verdicts of a task's checker: 1 is solved."""
_UNWRITTEN = frozenset({"legal", "user", "failed", ""})
"""Finishes of thoughts that cost no model call."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Measures of one run; None where the events do not tell."""

    finish_reason: str | None
    """None where the run has not finished."""
    solved: bool | None
    """Whether the run's answer is right; None where the task cannot check."""
    solved_any: bool | None
    """Whether any finished node is right."""
    num_thoughts: int
    """Thoughts that were written or chosen, the root and failed ones left out."""
    unparsed_share: float | None
    """Share of the thoughts that did not have the form asked for."""
    invalid_share: float | None
    """Share of the thoughts that were no legal step."""
    duplicate_share: float | None
    """Share of the thoughts that said what an earlier sibling says."""
    num_nodes: int
    num_expanded: int
    num_pruned: int
    num_duplicates: int
    num_failed: int
    tokens: TokenCounts
    """Of thoughts and scores together."""
    num_calls: int
    """Requests to the model."""
    wall_s: float
    tokens_per_s: float | None
    """Completion tokens a second of the whole run."""
    prefill_saved: float | None
    """Share of the prompt tokens whose K/V was there already."""
    peak_pages: int | None
    sharing_at_peak: float | None
    """Viewed pages ÷ held pages when most were held."""
    mean_pages: float | None
    """Held pages, averaged over time."""
    freed_pages: int
    """Pages that pruning gave back."""
    sharing_ratio: float | None
    """Viewed pages ÷ held pages, averaged over time: 1 is no sharing."""
    num_alarms: int

    def to_json(self) -> dict[str, Fact]:
        """Return the measures as JSON."""
        out: dict[str, Fact] = {name: getattr(self, name) for name in self.__slots__ if name != "tokens"}
        tokens = self.tokens
        out["tokens"] = {"prompt": tokens.prompt, "cached": tokens.cached, "completion": tokens.completion}
        return out


def measure(events: Iterable[Event]) -> RunMetrics:
    """Measure a run.

    Raises:
        TreeError: the events contradict each other.
    """
    tree, tally = Tree(), _Tally()
    for event in events:
        apply(tree, event)
        tally.add(event)
    counts = tree.counts()
    tokens, wall_s = tally.tokens, tally.last_ns / 1e9
    thoughts = tally.verdicts.total()
    return RunMetrics(
        finish_reason=None if tree.outcome is None else tree.outcome.reason,
        solved=None if tree.outcome is None else tree.outcome.solved,
        solved_any=_solved_any(tree),
        num_thoughts=thoughts,
        unparsed_share=_ratio(tally.verdicts[Verdict.UNPARSED], thoughts),
        invalid_share=_ratio(tally.verdicts[Verdict.INVALID], thoughts),
        duplicate_share=duplicate_share(tree),
        num_nodes=len(tree),
        num_expanded=sum(bool(node.children) for node in tree.nodes.values()),
        num_pruned=counts.get(NodeStatus.PRUNED, 0),
        num_duplicates=counts.get(NodeStatus.DUPLICATE, 0),
        num_failed=counts.get(NodeStatus.FAILED, 0),
        tokens=tokens,
        num_calls=tally.num_calls,
        wall_s=wall_s,
        tokens_per_s=_ratio(tokens.completion, wall_s),
        prefill_saved=_ratio(tokens.cached, tokens.prompt),
        peak_pages=None if tally.peak is None else tally.peak.held,
        sharing_at_peak=None if tally.peak is None else tally.peak.sharing_ratio,
        mean_pages=_ratio(tally.held_ns, tally.pool_ns),
        freed_pages=tally.freed_pages,
        sharing_ratio=_ratio(tally.viewed_ns, tally.held_ns),
        num_alarms=tally.num_alarms,
    )


def _ratio(part: float, whole: float) -> float | None:
    """Divide, None where there is nothing to divide by."""
    return part / whole if whole else None


def duplicate_share(tree: Tree) -> float | None:
    """Return the share of the written thoughts that repeat an earlier sibling; None without any thought.

    Thoughts are equal where the task's keys are, else where the texts differ in case, blanks and punctuation at most.
    """
    total = repeated = 0
    for parent in tree.nodes.values():
        seen: set[str] = set()
        for child in (tree[child] for child in parent.children):
            if child.status in (NodeStatus.WRITING, NodeStatus.FAILED) or not (child.key or child.text):
                continue
            said = child.key or plain(child.text)
            total += 1
            repeated += said in seen
            seen.add(said)
    return _ratio(repeated, total)


def _solved_any(tree: Tree) -> bool | None:
    """Whether a checker called any node right; None where no checker spoke and the run has no verdict."""
    verdicts = [s.value for node in tree.nodes.values() for k, s in node.scores.items() if k in EXACT_KINDS]
    ended = tree.outcome is not None and tree.outcome.solved is not None
    if not verdicts and not ended:
        return None
    return any(value == 1.0 for value in verdicts) or (tree.outcome is not None and tree.outcome.solved is True)


class _Tally:
    """Sums over the events; page readings count for as long as they were the latest."""

    def __init__(self) -> None:
        self.tokens = TokenCounts()
        self.verdicts: Counter[Verdict] = Counter()
        self.num_calls = self.freed_pages = self.num_alarms = self.last_ns = 0
        self.held_ns = self.viewed_ns = self.pool_ns = 0
        self.peak: PoolCounts | None = None
        self._pool: PoolCounts | None = None
        self._pool_since = 0

    def add(self, event: Event) -> None:
        """Count one event."""
        self.last_ns = event.t_ns
        match event:
            case NodeDone():
                self.tokens += event.tokens
                self.num_calls += event.finish not in _UNWRITTEN and event.tokens.completion > 0
                if event.node != ROOT and event.error is None:
                    self.verdicts[event.verdict] += 1
            case Scored():
                self.tokens += event.tokens
                self.num_calls += event.tokens.prompt > 0
            case Pruned():
                self.freed_pages += event.freed_pages
            case AlarmRaised():
                self.num_alarms += 1
            case PagesRead():
                self._read(event)
            case Finished():
                self._weigh(event.t_ns)
                if event.peak is not None:
                    self._widen(event.peak)
            case _:
                pass

    def _read(self, event: PagesRead) -> None:
        self._weigh(event.t_ns)
        self._pool, self._pool_since = event.pool, event.t_ns
        self._widen(event.pool)

    def _widen(self, pool: PoolCounts) -> None:
        if self.peak is None or pool.held > self.peak.held:
            self.peak = pool

    def _weigh(self, now_ns: int) -> None:
        """Add the latest reading for the time that it held."""
        if self._pool is None:
            return
        span = now_ns - self._pool_since
        self.held_ns += span * self._pool.held
        self.viewed_ns += span * self._pool.viewed
        self.pool_ns += span


# --- scorers against the truth -----------------------------------------------------------


def auc(values: Sequence[float | None], labels: Sequence[bool]) -> float | None:
    """Return the chance that a solvable state scores above an unsolvable one; ties count half.

    A missing value is below every number. None where one of the two kinds is missing.

    Raises:
        InvalidParameter: there are not as many labels as values.
    """
    _same_length(values, labels)
    num_good = sum(labels)
    num_bad = len(labels) - num_good
    if not num_good or not num_bad:
        return None
    ranked = sorted(range(len(values)), key=lambda i: _order(values[i]))
    rank_sum, at = 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and values[ranked[end]] == values[ranked[at]]:
            end += 1
        mean_rank = (at + 1 + end) / 2
        rank_sum += mean_rank * sum(labels[i] for i in ranked[at:end])
        at = end
    return (rank_sum - num_good * (num_good + 1) / 2) / (num_good * num_bad)


def regret(values: Sequence[float | None], labels: Sequence[bool], keep: int) -> float:
    """Return 1 where a solvable state was there, but none is among the ``keep`` best by value, else 0.

    Ties go to the earlier state, missing values are last, as in the search itself.

    Raises:
        InvalidParameter: there are not as many labels as values, or ``keep`` is below 1.
    """
    _same_length(values, labels)
    if keep < 1:
        raise InvalidParameter("keep", keep, "a whole number from 1 up")
    ranked = sorted(range(len(values)), key=lambda i: _order(values[i]), reverse=True)
    return float(any(labels) and not any(labels[i] for i in ranked[:keep]))


def mean_regret(levels: Sequence[tuple[Sequence[float | None], Sequence[bool]]], keep: int) -> float | None:
    """Average :func:`regret` over the levels that have a solvable state; None where none has."""
    regrets = [regret(values, labels, keep) for values, labels in levels if any(labels)]
    return sum(regrets) / len(regrets) if regrets else None


def _order(value: float | None) -> tuple[bool, float]:
    """Sort key, worst first: a missing value is below every number."""
    return (value is not None, 0.0 if value is None else value)


def _same_length(values: Sequence[float | None], labels: Sequence[bool]) -> None:
    if len(values) != len(labels):
        raise InvalidParameter("labels", len(labels), f"as many as there are values ({len(values)})")
