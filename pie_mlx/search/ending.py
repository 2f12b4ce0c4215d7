"""How a run ends: give the pages back, choose the answer, tell the one terminal event, make the result."""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.errors import PieError, PressureError
from pie_mlx.search.core import SearchCore
from pie_mlx.search.metrics import duplicate_share
from pie_mlx.search.node import ROOT, Node, NodeId, NodeStatus, rank_key
from pie_mlx.search.progress import Progress
from pie_mlx.search.result import NodeResult, PoolUse, SearchResult
from pie_mlx.search.trace_events import Accepted, Finished, FinishReason, Pruned


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the search stopped."""

    reason: FinishReason | None
    """None where the strategy came to its end."""
    why: str = ""
    node: NodeId | None = None
    """The node that a user accepted."""
    error: PieError | None = None


def conclude(core: SearchCore, ending: Ending, progress: Progress) -> SearchResult:
    """Close every context, choose the answer, tell the end, and return the result."""
    core.workspace.close_all()
    progress.tell_alarms()
    _end_writing(core, ending)
    chosen = ending.node or choose(core, progress)
    reason, error = _verdict(core, ending, chosen)
    if chosen is not None and core.tree[chosen].status is not NodeStatus.ACCEPTED:
        core.tell(Accepted(node=chosen))
    answer = None if chosen is None else answer_of(core, chosen)
    solved = _solved(core, chosen, answer)
    core.read_pages()
    told = ending.why if error is None else f"{error.code}: {error.message}"
    core.tell(
        Finished(
            reason=reason,
            answer=answer,
            solved=solved,
            node=chosen,
            error=told or None if error is not None or reason is FinishReason.FAILED else None,
            peak=core.peak,
        )
    )
    return _result(core, progress, reason, error)


def _end_writing(core: SearchCore, ending: Ending) -> None:
    """Give up the thoughts that were being written when the run ended."""
    for node in list(core.tree.walk()) if len(core.tree) else []:
        if node.status is NodeStatus.WRITING and node.id != ROOT:
            why = ending.why or (str(ending.reason) if ending.reason is not None else "over")
            core.tell(Pruned(node=node.id, reason=f"the run ended: {why}"))


def choose(core: SearchCore, progress: Progress) -> NodeId | None:
    """Choose among the finished nodes: one known to be right, else the strategy's choice, else the best."""
    candidates = progress.candidates()
    right = [node for node in candidates if progress.solved(node.id)]
    picked = [node for node in candidates if node.selected]
    for group in (right, _in_order_of_choice(core, picked), sorted(candidates, key=rank_key)):
        if group:
            return group[0].id
    return None


def _in_order_of_choice(core: SearchCore, picked: list[Node]) -> list[Node]:
    """Sort the chosen nodes as the strategy did; several are ranked by value, one is its word."""
    order = {node: place for place, node in enumerate(core.tree.selected)}
    return sorted(picked, key=lambda node: order[node.id])


def answer_of(core: SearchCore, node: NodeId) -> str:
    """Return what a node answers; for an unfinished one that a user accepted, its path."""
    position = core.rules[node]
    return position.answer if position.answer is not None else core.rules.path_text(node).strip()


def _solved(core: SearchCore, chosen: NodeId | None, answer: str | None) -> bool | None:
    """Whether the answer is right; None where the task cannot tell."""
    if not core.rules.task.has_check:
        return None
    if chosen is None or answer is None:
        return False
    check = core.rules[chosen].check or core.rules.task.check(answer)
    return None if check is None else check.solved


def _verdict(core: SearchCore, ending: Ending, chosen: NodeId | None) -> tuple[FinishReason, PieError | None]:
    """Return the terminal reason, and the error that a run without an answer failed by."""
    if ending.reason in (FinishReason.CANCELLED, FinishReason.FAILED, FinishReason.STARVED):
        return ending.reason, ending.error
    if ending.reason is FinishReason.BUDGET:
        found = chosen is not None and bool(core.rules.solved(chosen))
        return (FinishReason.ANSWER if found else FinishReason.BUDGET), None
    if ending.node is not None:
        return FinishReason.ANSWER, None
    if chosen is None:
        if core.errors:
            error = next((e for e in core.errors if isinstance(e, PressureError)), core.errors[-1])
            is_pressure = isinstance(error, PressureError)
            return (FinishReason.STARVED if is_pressure else FinishReason.FAILED), error
        return FinishReason.UNSOLVED, None
    wrong = core.rules.task.has_check and core.rules.solved(chosen) is False
    return (FinishReason.UNSOLVED if wrong else FinishReason.ANSWER), None


def _result(core: SearchCore, progress: Progress, reason: FinishReason, error: PieError | None) -> SearchResult:
    """Make the result from the tree as it ended."""
    tree, outcome = core.tree, core.tree.outcome
    assert outcome is not None, "the terminal event was told"
    pages = core.engine.readings().pages
    candidates = progress.candidates()
    return SearchResult(
        answer=outcome.answer,
        solved=outcome.solved,
        finish_reason=reason,
        node=outcome.node,
        nodes=tuple(NodeResult.of(node) for node in tree.walk()),
        tokens=core.spending.tokens,
        wall_s=core.spending.wall_s,
        pages=PoolUse(
            total=pages.total,
            peak=core.peak.held,
            free_before=core.free_before,
            free_after=pages.free + pages.cached,
            sharing_ratio=core.peak.sharing_ratio,
        ),
        alarms=tuple(tree.alarms),
        notices=tuple(tree.notices),
        seed=core.params.seed,
        oracle=core.params.oracle,
        calls=core.spending.calls,
        num_solved=sum(bool(core.rules.solved(node.id)) for node in candidates),
        num_finished=len(candidates),
        duplicate_share=duplicate_share(tree),
        error=error,
    )
