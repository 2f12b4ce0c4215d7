"""Readings made from the core's records; the lock is held, nothing changes."""

from __future__ import annotations

import time

from pie_mlx.engine.core import Core
from pie_mlx.engine.job import Job
from pie_mlx.engine.readings import ContextReading, PageReading, Readings, RequestReading, Wait
from pie_mlx.engine.scheduler import Blocked
from pie_mlx.ids import ContextId, PageId


def read_core(core: Core, *, head: Blocked | None, is_alive: bool, step_s: float | None) -> Readings:
    """Return pages, contexts, requests and counters as they are now."""
    now, now_perf = time.monotonic(), time.perf_counter()
    cache_views = core.index.views_by_page()
    contexts = tuple(
        ContextReading(
            id=s.id,
            name=s.name,
            parent=s.parent,
            num_tokens=len(s.tokens),
            num_resident=s.num_resident,
            num_let_go=s.table.num_let_go,
            num_evicted_tokens=s.num_evicted_tokens,
            num_pages=s.table.num_pages,
            num_private=s.table.num_own(cache_views),
            idle_s=0.0 if s.job is not None else now - s.touched_s,
            pinned=s.pinned,
            request=s.job.id if s.job is not None else None,
        )
        for s in core.sequences.values()
    )
    requests = tuple(_read_job(job, head, now_perf) for job in core.jobs.values())
    counters = dict(core.counters) | {
        "pages_freed": core.pool.num_freed_ever,
        "prefix_hits": core.index.num_hits,
        "prefix_evicted": core.index.num_evicted,
    }
    return Readings(core.page_counts(), contexts, requests, counters, is_alive, step_s)


def _read_job(job: Job, head: Blocked | None, now_s: float) -> RequestReading:
    """Return one live request as it is now."""
    wait, why = _reason(job, head)
    return RequestReading(
        id=job.id,
        context=job.sequence.id,
        phase=job.phase.value,
        outstanding_tokens=max(0, job.num_to_compute),
        completion_tokens=len(job.tokens),
        age_s=now_s - job.submitted_s,
        waits_for=why,
        wait=wait,
    )


def _reason(job: Job, head: Blocked | None) -> tuple[Wait | None, str | None]:
    """Say what a request waits for, as a kind and in words; nothing for one that takes part in steps."""
    if head is not None and head.request == job.id:
        return "pages", head.why
    if job.phase.is_running:
        return None, None
    if job.after is not None and not job.after.phase.is_over and not job.after.is_prefilled:
        return "prefix", f"request {job.after.id} computes its prefix"
    before = "" if head is None else f": request {head.request} needs {head.need_pages} pages first"
    return "turn", f"its turn{before}"


def read_pages(core: Core) -> list[PageReading]:
    """Return every held page with its written slots and its owners, lowest page first."""
    owners: dict[PageId, list[ContextId]] = {}
    for sequence in core.sequences.values():
        for page, _shown in sequence.table.views():
            owners.setdefault(page, []).append(sequence.id)
    cached = set(core.index.pages())
    held = sorted(owners.keys() | cached)
    return [PageReading(page, core.pool.used(page), tuple(owners.get(page, ())), page in cached) for page in held]
