"""What a stall is: the engine's records read once, under the lock, and the one cause that they show.

Kinds: *device* (a call has not returned), *leak* (a page is held that nobody views), *deadlock* (requests wait
for each other in a cycle), *starved* (the head needs pages that nobody may take), *stalled* (none of these,
and yet nothing moves). *Hog* and *impossible* asks are refused by the engine before they can stall.
Pages that may be evicted count as free: who waits although those would do is stalled, not starved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pie_mlx.engine.world import CoreWorld
from pie_mlx.errors import Deadlock, Fact, Leak, PieError, Stalled, Starved, StepTimeout
from pie_mlx.ids import RequestId

if TYPE_CHECKING:
    from pie_mlx.engine.core import Core
    from pie_mlx.engine.scheduler import Blocked
    from pie_mlx.engine.stepping import Stepper


@dataclass(frozen=True, slots=True)
class Finding:
    """A stall: its kind, its typed error, and the one request that is blocked (None where all are)."""

    kind: str
    error: PieError
    request: RequestId | None


@dataclass(frozen=True, slots=True)
class Waited:
    """How long something stood still, against which limit, and how grave that is: ``warning`` or ``failure``."""

    level: str
    waited_s: float
    limit_s: float


def diagnose(core: Core, head: Blocked | None, actions: Sequence[str], waited_s: float) -> Finding:
    """Say why nothing has moved for ``waited_s`` although no device call is out; the lock is held."""
    oldest = next(iter(core.jobs), None)
    request = head.request if head is not None and head.request in core.jobs else oldest
    leaked = leaked_pages(core)
    if leaked:
        return Finding("leak", Leak(leaked, core.pool.num_pages), request)
    if head is None or head.request not in core.jobs:
        return Finding("stalled", Stalled(waited_s, "requests are there, but none was given a step"), request)
    cycle = find_cycle(wait_for(core, head))
    if cycle:
        names = tuple(f"request {member}" for member in cycle)
        return Finding("deadlock", Deadlock(names, core.pool.num_free, core.pool.num_pages), max(cycle))
    world = CoreWorld(core)
    younger = [ask.context for ask in world.younger_holders(head.request)]
    available = world.free_pages + world.group_pages([*world.idle_contexts(), *younger])
    if head.need_pages <= available:
        cause = (
            f"request {head.request} needs {head.need_pages} pages, {available} are free or may be taken: {head.why}"
        )
        return Finding("stalled", Stalled(waited_s, cause), request)
    pinned = {page for s in core.sequences.values() if s.pinned for page in s.table.pages}
    cause = f"pinned contexts hold {len(pinned)} pages; {head.why}"
    waiter = f"request {head.request}"
    error = Starved(head.need_pages, available, world.total_pages, cause, waiter, world.holders(), tuple(actions))
    return Finding("starved", error, request)


def hung_device(waited_s: float, limit_s: float) -> Finding:
    """Say that a device call has not returned for ``waited_s``."""
    return Finding("device", StepTimeout(waited_s=waited_s, limit_s=limit_s), None)


def leaked_pages(core: Core) -> tuple[int, ...]:
    """Return pages that are held although no owner views them."""
    viewed = {page for page, _shown in core.views()}
    refs = core.pool.refs_by_page()
    return tuple(page for page in range(1, core.pool.num_pages + 1) if refs[page] and page not in viewed)


def wait_for(core: Core, head: Blocked) -> dict[RequestId, list[RequestId]]:
    """Return who waits for whom: on a prefix, on pages that may not be taken, or on the head's turn.

    The head waits for older requests that hold pages; whatever does not run waits for the head, unless it
    waits for a prefix. Order of arrival makes a cycle impossible, so that one is a fault of ours.
    """
    edges: dict[RequestId, list[RequestId]] = {}
    for job in core.jobs.values():
        leader = job.after
        if job.id == head.request:
            older = [other for other in core.jobs.values() if other.id < job.id]
            edges[job.id] = [other.id for other in older if other.sequence.table.num_pages]
        elif leader is not None and not leader.phase.is_over and not job.phase.is_running:
            edges[job.id] = [leader.id]
        elif not job.phase.is_running:
            edges[job.id] = [head.request]
    return edges


def find_cycle(edges: Mapping[RequestId, Sequence[RequestId]]) -> tuple[RequestId, ...]:
    """Return the members of one cycle in a wait-for graph, in order; empty if there is none."""
    done: set[RequestId] = set()
    for start in edges:
        path: list[RequestId] = []
        branches = [iter((start,))]
        while branches:
            node = next(branches[-1], None)
            if node is None:
                branches.pop()
                if path:
                    done.add(path.pop())
            elif node in path:
                return tuple(path[path.index(node) :])
            elif node not in done:
                path.append(node)
                branches.append(iter(edges.get(node, ())))
    return ()


def report(core: Core, finding: Finding, when: Waited, stepper: Stepper) -> dict[str, Fact]:
    """Return a stall as JSON: what it is, who waits for whom, who holds what, what was tried, and what to try."""
    counts = core.page_counts()
    holders: list[Fact] = [str(holder) for holder in CoreWorld(core).holders()]
    requests: list[Fact] = [
        {"request": job.id, "context": job.sequence.label, "phase": job.phase.value, "tokens": len(job.tokens)}
        for job in list(core.jobs.values())[:50]
    ]
    pages: dict[str, Fact] = {
        "total": counts.total,
        "free": counts.free,
        "private": counts.private,
        "shared": counts.shared,
        "cached": counts.cached,
    }
    waits: dict[str, Fact] = {}
    if stepper.head is not None and stepper.head.request in core.jobs:
        edges = wait_for(core, stepper.head)
        waits = {str(waiter): [int(other) for other in others] for waiter, others in list(edges.items())[:50]}
    return {
        "schema": "pie-mlx.alarm/1",
        "level": when.level,
        "kind": finding.kind,
        "request": finding.request,
        "waited_s": round(when.waited_s, 3),
        "limit_s": when.limit_s,
        "error": dict(finding.error.to_json()),
        "pages": pages,
        "holders": holders,
        "waits_for": waits,
        "tried": list(stepper.actions[-20:]),
        "try": list(_what_to_try(core, finding)),
        "requests": requests,
        "num_requests": len(core.jobs),
    }


def _what_to_try(core: Core, finding: Finding) -> Iterator[str]:
    """Yield what would end this stall, the nearest first."""
    error = finding.error
    if isinstance(error, Starved):
        for sequence in core.sequences.values():
            if sequence.pinned and sequence.job is None and sequence.table.num_pages:
                yield f"close or unpin {sequence.label}: {sequence.table.num_pages} pages"
        lack = max(1, error.need_pages - error.free_pages)
        yield f"grow the pool: --pool-pages {core.pool.num_pages + lack} or more"
    if error.hint is not None:
        yield error.hint
