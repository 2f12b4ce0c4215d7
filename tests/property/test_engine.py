"""Whatever owners do and whatever fails, no page is lost, no token is wrong, and every request ends."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pie_mlx.backend.fake import FakeBackend, Faults, sequence_hash
from pie_mlx.engine.completion import Completion
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.job import GenerateGoal, Goal, Job, LabelsGoal, LogprobsGoal, Phase, num_leaving
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.errors import Cancelled, ContextBusy, ContextTooLong, DeviceFailed, EmptyPrompt, Hog, Impossible, PieError
from pie_mlx.ids import ContextId
from pie_mlx.sampling import Sampling, mix

VOCAB = 64
LIMIT = 90
GREEDY = Sampling()


WINDOW = 11


def greedy_after(tokens: list[int], count: int, window: int | None) -> list[int]:
    """Return what the fake device generates after ``tokens``, computed without any engine."""
    sequence = tokens.copy()
    for _ in range(count):
        sequence.append(mix(seen_hash(sequence, window)) % VOCAB)
    return sequence[len(tokens) :]


def seen_hash(tokens: list[int], window: int | None) -> int:
    """Return the hash of the last ``window`` tokens."""
    return sequence_hash(tokens[-(window or len(tokens)) :])


class Serving(RuleBasedStateMachine):
    """Contexts and requests over a small pool, beside a plain model: each context's tokens."""

    @initialize(
        pool=st.integers(1, 14),
        page=st.sampled_from([8, 16]),
        batch=st.sampled_from([1, 2, 5, 32]),
        chunk=st.sampled_from([1, 7, 16, 64]),
        share=st.sampled_from([0.0, 0.5, 1.0]),
        kind=st.sampled_from(["plain", "one row", "state", "window", "window state"]),
    )
    def make(self, *, pool: int, page: int, batch: int, chunk: int, share: float, kind: str) -> None:
        """Start with one short context."""
        self.window = WINDOW if "window" in kind else None
        self.backend = FakeBackend(
            vocab_size=VOCAB,
            context_tokens=LIMIT,
            faults=Faults(),
            max_batch_rows=1 if kind == "one row" else None,
            has_state="state" in kind,
            window=self.window,
        )
        settings = EngineSettings(
            pool_pages=pool, page_size=page, max_batch=batch, prefill_chunk=chunk, prefix_cache_share=share
        )
        self.driver = Driver(self.backend, settings)
        self.core = self.driver.core
        self.tokens: dict[ContextId, list[int]] = {self.core.open([1, 2, 3], "").id: [1, 2, 3]}
        self.jobs: dict[Job, list[int]] = {}
        self.can_fail = False

    def pick(self, at: int) -> ContextId:
        """Map any number to a live context."""
        return list(self.tokens)[at % len(self.tokens)]

    @rule(count=st.integers(0, 60), kind=st.integers(0, 3))
    def open(self, count: int, kind: int) -> None:
        """Open a context; few kinds of text, so that prefixes repeat."""
        if len(self.tokens) < 16:
            tokens = [(kind * 7 + at) % VOCAB for at in range(count)]
            self.tokens[self.core.open(tokens, "").id] = tokens

    @rule(at=st.integers(0, 99))
    def fork(self, at: int) -> None:
        """Fork at any time, also while the parent computes; a fork takes no page."""
        context = self.pick(at)
        if len(self.tokens) < 16:
            free = self.core.pool.num_free
            child = self.core.fork(context, "")
            self.tokens[child.id] = child.tokens.copy()
            assert child.tokens == self.core.get(context).tokens
            assert self.core.pool.num_free == free

    @rule(
        at=st.integers(0, 99),
        goal=st.sampled_from(["generate", "generate", "prefill", "labels", "logprobs"]),
        count=st.integers(1, 30),
    )
    def submit(self, at: int, goal: str, count: int) -> None:
        """Ask for something; what is refused is refused with a type and changes nothing."""
        context = self.pick(at)
        before = list(self.core.get(context).tokens)
        extra = [5] * count if goal == "logprobs" else []
        goals: dict[str, Goal] = {
            "generate": GenerateGoal(count, GREEDY, frozenset()),
            "prefill": GenerateGoal(0, GREEDY, frozenset()),
            "labels": LabelsGoal((3, 4)),
            "logprobs": LogprobsGoal(count),
        }
        try:
            job = self.core.submit(context, goals[goal], extra=extra)
        except (ContextBusy, ContextTooLong, EmptyPrompt, Impossible):
            assert self.core.get(context).tokens == before
            return
        self.jobs[job] = before

    @rule(at=st.integers(0, 99), count=st.integers(1, 9))
    def append(self, at: int, count: int) -> None:
        """Put tokens behind an idle context."""
        context = self.pick(at)
        if self.core.get(context).job is None:
            self.core.append(context, [9] * count)

    @rule(at=st.integers(0, 99), share=st.floats(0, 1))
    def truncate(self, at: int, share: float) -> None:
        """Truncation frees exactly the pages it reports."""
        context = self.pick(at)
        sequence, free = self.core.get(context), self.core.pool.num_free
        if sequence.job is None:
            freed = self.core.truncate(context, round(len(sequence.tokens) * share))
            assert self.core.pool.num_free == free + freed

    @rule(at=st.integers(0, 99), kind=st.integers(0, 3), count=st.integers(0, 60))
    def rebase(self, at: int, kind: int, count: int) -> None:
        """Give a context another text."""
        context = self.pick(at)
        if self.core.get(context).job is None:
            tokens = [(kind * 7 + at) % VOCAB for at in range(count)]
            self.core.rebase(context, tokens)
            assert self.core.get(context).tokens == tokens

    @rule(at=st.integers(0, 99), pinned=st.booleans())
    def pin(self, at: int, pinned: bool) -> None:
        """Pin or unpin a context."""
        self.core.get(self.pick(at)).pinned = pinned

    @precondition(lambda self: len(self.tokens) > 1)
    @rule(at=st.integers(0, 99), in_flight=st.booleans())
    def close(self, at: int, in_flight: bool) -> None:
        """Close a context, between two steps or in the middle of one."""
        context = self.pick(at)
        if in_flight:
            self.between(lambda: self.core.close(context))
        else:
            free = self.core.pool.num_free
            freed = self.core.close(context)
            assert self.core.pool.num_free == free + freed
        self.core.close(context)
        del self.tokens[context]

    @rule(at=st.integers(0, 99), in_flight=st.booleans())
    def cancel(self, at: int, in_flight: bool) -> None:
        """Cancel a request, between two steps or in the middle of one."""
        live = list(self.core.jobs.values())
        if not live:
            return
        job = live[at % len(live)]

        def end() -> None:
            self.core.end(job, Phase.CANCELLED, error=Cancelled())

        if in_flight:
            self.between(end)
        end()

    @rule(at=st.integers(0, 99), all_views=st.booleans(), in_flight=st.booleans())
    def evict(self, at: int, all_views: bool, in_flight: bool) -> None:
        """Take a context's pages away, idle or busy: its tokens stay what they are."""
        sequence = self.core.get(self.pick(at))

        def take() -> None:
            self.core.evict(sequence, all_views=all_views, was_running=False)

        if in_flight:
            self.between(take)
        else:
            take()

    @rule(kind=st.sampled_from(["fail", "fail_row", "lose_row"]))
    def fail(self, kind: str) -> None:
        """Let the next step fail, or one of its rows."""
        setattr(self.backend.faults, kind, frozenset({self.backend.num_steps}))
        self.can_fail = True
        self.driver.step()

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        """Run some steps."""
        for _ in range(count):
            self.driver.step()

    @rule(count=st.integers(1, 5))
    def drop_cache(self, count: int) -> None:
        """Evict cached pages, or forget the index."""
        if count == 5:
            self.core.index.clear()
        else:
            self.core.index.evict(count)

    def between(self, action: object) -> None:
        """Do something while the next step is on the device."""
        assert callable(action)
        self.backend.faults.before_step = {self.backend.num_steps: action}
        self.driver.step()
        self.backend.faults.before_step = {}

    @invariant()
    def nothing_is_lost_or_wrong(self) -> None:
        """Check the records, and every answer against the device's own arithmetic."""
        if not hasattr(self, "core"):
            return
        self.core.check()
        if self.core.window is not None:
            for sequence in self.core.sequences.values():
                table, needed = sequence.table, self.core.window.first_needed(sequence.num_resident)
                assert table.num_let_go <= needed, "nothing that is still seen was let go"
                leaving = 0 if sequence.job is None else num_leaving(sequence.job.goal)
                most = self.core.window.num_kept + leaving + self.core.pool.page_size
                assert table.num_shown < most, "what nobody sees again was let go"
        for job, before in list(self.jobs.items()):
            if job.phase.is_over:
                self.check_answer(job, before)
                del self.jobs[job]

    def check_answer(self, job: Job, before: list[int]) -> None:
        """One terminal delivery, and what came out is what the sequence alone decides."""
        deliveries = []
        while not job.deliveries.empty():
            deliveries.append(job.deliveries.get())
        assert sum(isinstance(delivery, Completion | PieError) for delivery in deliveries) == 1
        assert job.tokens == greedy_after(before, len(job.tokens), self.window)
        if job.error is not None:
            assert isinstance(job.error, Cancelled | DeviceFailed | Hog)
            assert self.can_fail or not isinstance(job.error, DeviceFailed)
            if isinstance(job.error, Hog):
                pool, pinned = self.core.pool, [s for s in self.core.sequences.values() if s.pinned]
                held = {page for sequence in pinned for page in sequence.table.pages}
                need = pool.pages_for(len(before) + len(job.tokens))
                if self.core.window is not None:
                    need = min(need, self.core.window.least_pages(pool.page_size, num_leaving(job.goal)))
                assert need > pool.num_pages - len(held), "it would have fitted"
        elif isinstance(job.goal, LabelsGoal):
            value = seen_hash(before, self.window)
            raw = [mix(value ^ label) % 1000 + 1 for label in (3, 4)]
            assert job.label_probs == tuple(weight / (sum(raw) + 500) for weight in raw)
        elif isinstance(job.goal, LogprobsGoal):
            hashes = [seen_hash(before + [5] * at, self.window) for at in range(job.goal.num_targets)]
            assert job.scores == [-(mix(value ^ 5) % 1000) / 100 for value in hashes]
        elif isinstance(job.goal, GenerateGoal):
            assert job.reason == ("length" if len(job.tokens) == job.goal.max_tokens else "context_full")

    def teardown(self) -> None:
        """Without pins, a bounded number of steps ends every request; closing everything frees everything."""
        if not hasattr(self, "core"):
            return
        for sequence in self.core.sequences.values():
            sequence.pinned = False
        most = 40 * (1 + sum(len(s.tokens) + 40 for s in self.core.sequences.values()))
        steps = 0
        while self.driver.step():
            steps += 1
            assert steps <= most, "the requests do not end"
        assert not self.core.jobs, "a request waits although nothing is pinned"
        self.nothing_is_lost_or_wrong()
        for context in list(self.core.sequences):
            self.core.close(context)
        self.core.index.clear()
        self.core.check()
        assert self.core.pool.num_free == self.core.pool.num_pages


TestServing = Serving.TestCase
