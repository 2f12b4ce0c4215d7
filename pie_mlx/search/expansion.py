"""Expanding nodes: from wishes for children to written, read and committed thoughts.

All children of an action are submitted together, as many at a time as the pool is likely to hold, and committed
in the order of the wishes whatever the order in which the model finishes them: the tree and its events depend
on the seed alone. Pressure makes the work narrower (fewer at a time, then one with every other context closed),
never different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pie_mlx.errors import Impossible, PieError, PressureError
from pie_mlx.sampling import derive_seed
from pie_mlx.search.concurrency import estimate, waves
from pie_mlx.search.failures import RecordedError
from pie_mlx.search.node import FINAL, NodeId, NodePages, NodeStatus, child_id, id_path, plain
from pie_mlx.search.rules import Reading
from pie_mlx.search.strategies.base import INDEPENDENT, Ask
from pie_mlx.search.trace_events import Deduplicated, NodeDone, NodeStarted, Verdict
from pie_mlx.search.writing import Pen, Slot, Writing, Written

if TYPE_CHECKING:
    from pie_mlx.search.core import SearchCore


class Expander:
    """Carries out the wish for children."""

    def __init__(
        self,
        core: SearchCore,
        pen: Pen,
        judge_early: Callable[[Sequence[NodeId]], None],
        *,
        tells_pieces: bool = False,
    ) -> None:
        """Work for ``core``, writing with ``pen``; tell thoughts piece by piece where that is wanted.

        ``judge_early`` judges nodes whose contexts are about to be closed.
        """
        self._judge_early = judge_early
        self._tells_pieces = tells_pieces
        self._core = core
        self._pen = pen
        self._is_narrow = False
        self._trunks: set[NodeId] = set()
        """Parents that stay open until the next expansion, as not all of their children do."""

    def expand(self, asks: Sequence[Ask], *, seed: int | None = None) -> list[list[NodeId]]:
        """Write children and return the usable ones of each ask; ``seed`` replaces the run's for these."""
        core = self._core
        if core.params.propose == "legal":
            slots = self._write_legal(asks)
        else:
            slots = self._slots(asks, core.params.seed if seed is None else seed)
            for slot in slots:
                core.tell(NodeStarted(node=slot.node, seed=slot.seed))
            core.spending.nodes += len(slots)
            parents = dict.fromkeys(slot.parent for slot in slots)
            old_trunks = self._trunks.difference(parents)
            if old_trunks:
                for parent in parents:
                    core.workspace.context(parent)  # one that was closed takes what its trunk holds, before that goes
                core.workspace.close(old_trunks)
            self._trunks = self._write(slots)
            core.workspace.close(parent for parent in parents if parent not in self._trunks)
        made = {slot.node for slot in slots}
        return [
            [child for child in core.tree[ask.node].children if child in made and core.tree[child].status not in FINAL]
            for ask in asks
        ]

    # --- planning --------------------------------------------------------------------------

    def _slots(self, asks: Sequence[Ask], seed: int) -> list[Slot]:
        """Name the children that the budgets allow; every asked node gets its first child before a second."""
        core = self._core
        slots: list[Slot] = []
        for ask in asks:
            is_answer = core.rules.writes_answer(ask.node)
            # Answers are long: a path of thoughts gets one, unless answers are all there is.
            breadth = 1 if is_answer and core.tree[ask.node].depth > 0 else ask.breadth
            first = id_path(core.tree.next_child(ask.node))[-1]
            limit = core.params.answer_tokens if is_answer else core.params.max_tokens
            for index in range(first, first + breadth):
                node = child_id(ask.node, index)
                slots.append(Slot(ask.node, node, derive_seed(seed, *id_path(node)), limit, is_answer))
        return self._within_budget(slots)

    def _within_budget(self, slots: list[Slot]) -> list[Slot]:
        """Drop what could go over the budget of nodes or tokens; a rest of tokens still writes one short thought."""
        spending = self._core.spending
        slots = slots[: spending.nodes_left]
        left = spending.tokens_left
        if left is None or not slots:
            return slots
        reasoning = self._core.params.reasoning_tokens
        kept: list[Slot] = []
        for slot in slots:
            left -= slot.max_tokens + reasoning
            if left < 0:
                break
            kept.append(slot)
        if kept:
            return kept
        one = slots[0]
        rest = max((spending.tokens_left or 1) - reasoning, 1)
        return [Slot(one.parent, one.node, one.seed, min(one.max_tokens, rest), one.is_answer)]

    def _wave_size(self, slots: Sequence[Slot]) -> int:
        """Return how many branches may write at the same time; says so where they are fewer than wished."""
        core = self._core
        if self._is_narrow:
            return 1
        need = estimate(
            prompt_tokens=0,
            branches=len(slots),
            thought_tokens=max(slot.max_tokens for slot in slots) + core.params.reasoning_tokens,
            judge_tokens=0,
            page_size=core.page_size,
        )
        size = need.fitting(core.available_pages())
        if size < len(slots):
            core.notice_once(
                f"the pool is small: {size} of {len(slots)} branches at a time "
                f"(about {need.peak} pages wanted, {core.available_pages()} available)"
            )
        return size

    # --- writing ---------------------------------------------------------------------------

    def _write(self, slots: list[Slot]) -> set[NodeId]:
        """Write and commit all slots; what the trace knows is not written again.

        Returns the parents some of whose children were closed to make room for others.
        """
        core = self._core
        fresh: list[Slot] = []
        for slot in slots:
            known = core.journal.known_thought(slot.node)
            if known is None:
                fresh.append(slot)
                continue
            core.attend()
            self._commit(slot, _from_trace(known))
        trunks: set[NodeId] = set()
        while fresh:
            size = self._wave_size(fresh)
            group = waves(len(fresh), size)[0]
            wave = [fresh[i] for i in group]
            self._write_wave(wave)
            fresh = fresh[len(group) :]
            if fresh:
                # Kept open, the written ones would leave the rest of the level ever fewer pages to write in.
                written = [slot.node for slot in wave]
                self._judge_early(written)
                core.workspace.close_leaves(written)
                trunks.update(slot.parent for slot in wave)
        return trunks

    def _write_wave(self, wave: list[Slot]) -> None:
        """Write one group at the same time and commit it in order."""
        core = self._core
        core.make_resident(dict.fromkeys(slot.parent for slot in wave))
        started = [self._start(slot) for slot in wave]
        for at, writing in enumerate(started):
            written = writing if isinstance(writing, Written) else self._pen.finish(writing, core.wait)
            core.attend()
            if isinstance(written.error, PressureError) and not isinstance(written.error, Impossible):
                written = self._write_alone(wave[at], [w for w in started[at + 1 :] if isinstance(w, Writing)])
            self._commit(wave[at], written)

    def _start(self, slot: Slot) -> Writing | Written:
        """Submit one slot; a refusal is its outcome."""
        core = self._core
        if core.tree[slot.node].status is not NodeStatus.WRITING:
            return Written(finish="failed")
        try:
            writing = self._pen.start(slot, core.rules.lead(slot.parent))
        except PieError as error:
            return Written(finish="failed", error=error)
        if self._tells_pieces and writing.lead is None:
            core.live[slot.node] = writing.request
        return writing

    def _write_alone(self, slot: Slot, others: Sequence[Writing]) -> Written:
        """Write again what pressure ended: after the others, and then with every other context closed."""
        core = self._core
        for other in others:
            core.settle(other.request)
        core.notice_once("the pool is too small for branches side by side: one at a time from here on")
        self._is_narrow = True
        written = self._attempt(slot)
        if not isinstance(written.error, PressureError):
            return written
        core.notice_once("low residency: contexts are closed between thoughts and computed again when wanted")
        # A path that is computed afresh fills its pages; one that was forked leaves a part of a page a fork.
        core.workspace.close_all_but({other.slot.node for other in others})
        return self._attempt(slot)

    def _attempt(self, slot: Slot) -> Written:
        """Write one slot with nothing beside it."""
        writing = self._start(slot)
        return writing if isinstance(writing, Written) else self._pen.finish(writing, self._core.wait)

    # --- committing ------------------------------------------------------------------------

    def _commit(self, slot: Slot, written: Written) -> None:
        """Make a thought part of the tree: read it, tell it, and let equal states share one node."""
        core = self._core
        if written.finish != "legal":
            core.spending.add(written.tokens)
        if core.tree[slot.node].status is not NodeStatus.WRITING:
            core.workspace.close([slot.node])
            return
        if written.error is not None:
            core.workspace.close([slot.node])
            core.errors.append(written.error)
            told = f"{written.error.code}: {written.error.message}"
            core.tell(NodeDone(node=slot.node, finish="failed", error=told))
            return
        reading = core.rules.read(slot.parent, written.text)
        self._place(slot.node, reading, written.logprobs)
        core.tell(
            NodeDone(
                node=slot.node,
                text=reading.text,
                reasoning=written.reasoning,
                finish=written.finish,
                tokens=written.tokens,
                pages=self._pages(slot.node),
                key=self._key(slot.parent, reading),
                verdict=reading.verdict,
                reason=reading.reason,
                terminal=reading.position is not None and reading.position.terminal,
            )
        )
        self._merge(slot.node, reading)

    def _place(self, node: NodeId, reading: Reading, logprobs: tuple[float, ...]) -> None:
        """Give a readable thought its position, and its context exactly the tokens of its text."""
        core = self._core
        if reading.position is None:
            core.workspace.close([node])
            return
        core.rules.place(node, reading.position)
        core.logprobs[node] = logprobs
        core.workspace.settle(node)

    def _pages(self, node: NodeId) -> NodePages:
        """Return the pages that a node's open context views."""
        counts = self._core.workspace.pages(node)
        return NodePages() if counts is None else NodePages(counts.total, counts.shared)

    def _key(self, parent: NodeId, reading: Reading) -> str:
        """Return the task's key of the state, else one that near-equal siblings share."""
        if reading.position is None or not self._core.params.dedup:
            return ""
        if self._core.params.strategy in INDEPENDENT:
            return ""
        return reading.key or f"{parent}: {plain(reading.text)}"

    def _merge(self, node: NodeId, reading: Reading) -> None:
        """Let a node whose state is there already stand back for the other one."""
        core = self._core
        key = core.tree[node].key
        if reading.verdict is not Verdict.OK or not key:
            return
        first = core.tree.find_key(key)
        if first is not None and first.id != node and first.status not in FINAL:
            freed = core.workspace.close([node])
            core.tell(Deduplicated(node=node, duplicate_of=first.id, freed_pages=freed))

    def _write_legal(self, asks: Sequence[Ask]) -> list[Slot]:
        """Make the task's legal moves children, without a model."""
        core = self._core
        slots: list[Slot] = []
        for ask in asks:
            for move in self._moves(ask)[: core.spending.nodes_left]:
                node = core.tree.next_child(ask.node)
                slot = Slot(ask.node, node, derive_seed(core.params.seed, *id_path(node)), 1, is_answer=False)
                core.tell(NodeStarted(node=node, seed=slot.seed))
                core.spending.nodes += 1
                known = core.journal.known_thought(node)
                core.attend()
                self._commit(slot, Written(move, finish="legal") if known is None else _from_trace(known))
                slots.append(slot)
        return slots

    def _moves(self, ask: Ask) -> list[str]:
        """Return the moves to make children of: all that are not there yet, or random ones where samples are asked."""
        core = self._core
        moves = core.rules.task.legal_moves(core.rules[ask.node].state)
        if moves and (ask.breadth == 1 or core.params.strategy in INDEPENDENT):
            first = id_path(core.tree.next_child(ask.node))
            seeds = (derive_seed(core.params.seed, *first[:-1], first[-1] + at) for at in range(ask.breadth))
            return [moves[seed % len(moves)] for seed in seeds]
        told = {core.tree[child].text for child in core.tree[ask.node].children}
        return [move for move in moves if move not in told]


def _from_trace(known: NodeDone) -> Written:
    """Return a thought as the trace has it; an error keeps its text."""
    if known.error is not None:
        return Written(finish="failed", error=RecordedError(known.error))
    return Written(known.text, known.reasoning, known.finish, known.tokens)
