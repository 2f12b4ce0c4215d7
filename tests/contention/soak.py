"""A million operations on small pools: ``python tests/contention/soak.py [OPERATIONS] [SEED]``.

An operation is a verb of an owner (open, fork, submit, append, truncate, rebase, pin, cancel, close), a step,
a failure of the device or an eviction. The records are checked along the way, every answer is compared with
the device's own arithmetic, and at the end every page must be free.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable

from pie_mlx.backend.fake import FakeBackend, sequence_hash
from pie_mlx.engine.driver import Driver
from pie_mlx.engine.job import GenerateGoal, Job, LabelsGoal, LogprobsGoal, Phase
from pie_mlx.engine.sequence import Sequence
from pie_mlx.engine.settings import EngineSettings
from pie_mlx.errors import Cancelled, ContextBusy, ContextTooLong, EmptyPrompt, Impossible
from pie_mlx.ids import ContextId
from pie_mlx.sampling import Sampling, mix

VOCAB = 256
MOST_CONTEXTS = 60
MOST_JOBS = 40
POOLS = (8, 20, 40, 100)
"""Pages; from one request at a time to most of them."""


class Soak:
    """A driver, a source of chance, and the answers that are still to be compared."""

    def __init__(self, seed: int, *, pages: int) -> None:
        """Start with an empty engine of ``pages`` pages."""
        self.backend = FakeBackend(vocab_size=VOCAB, context_tokens=400)
        settings = EngineSettings(pool_pages=pages, page_size=16, max_batch=16, prefill_chunk=64)
        self.driver = Driver(self.backend, settings)
        self.core = self.driver.core
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.asked: list[tuple[Job, list[int]]] = []
        self.verbs: list[tuple[int, Callable[[], None]]] = [
            (50, self.step),
            (6, self.open),
            (10, self.fork),
            (14, self.submit),
            (3, self.append),
            (2, self.truncate),
            (2, self.rebase),
            (1, self.pin),
            (2, self.cancel),
            (9, self.close),
            (1, self.fail),
            (1, self.evict),
        ]
        self._weights = [weight for weight, _verb in self.verbs]

    def run(self, operations: int, *, check_every: int) -> None:
        """Do ``operations`` operations, then end everything and assert that nothing is lost."""
        chosen = self.rng.choices(self.verbs, self._weights, k=operations)
        for at, (_weight, verb) in enumerate(chosen):
            verb()
            self.counts[verb.__name__] += 1
            if at % check_every == 0:
                self.core.check()
                self.compare()
        for sequence in self.core.sequences.values():
            sequence.pinned = False
        self.driver.run()
        self.compare()
        assert not self.asked, "a request never ended"
        for context in list(self.core.sequences):
            self.core.close(context)
        self.core.index.clear()
        self.core.check()
        assert self.core.pool.num_free == self.core.pool.num_pages, "pages were lost"

    def compare(self) -> None:
        """Compare what ended with what the sequence alone decides."""
        left = []
        for job, before in self.asked:
            if not job.phase.is_over:
                left.append((job, before))
                continue
            self.counts[job.reason or type(job.error).__name__] += 1
            sequence = before.copy()
            for token in job.tokens:
                assert token == mix(sequence_hash(sequence)) % VOCAB, "a token is wrong"
                sequence.append(token)
        self.asked = left

    def any(self) -> Sequence | None:
        """Return some context."""
        return self.core.sequences[self.rng.choice(list(self.core.sequences))] if self.core.sequences else None

    def any_idle(self) -> Sequence | None:
        """Return some context without a request."""
        sequence = self.any()
        return sequence if sequence is not None and sequence.job is None else None

    def tokens(self) -> list[int]:
        """Return a text; few kinds, so that prefixes repeat."""
        kind, count = self.rng.randrange(12), min(300, int(self.rng.expovariate(1 / 50)))
        return [(kind * 31 + at * 7 + kind * at) % VOCAB for at in range(count)]

    def step(self) -> None:
        """Run a step."""
        self.driver.step()

    def open(self) -> None:
        """Open a context."""
        if len(self.core.sequences) < MOST_CONTEXTS:
            self.core.open(self.tokens(), "")

    def fork(self) -> None:
        """Fork one."""
        parent = self.any()
        if parent is not None and len(self.core.sequences) < MOST_CONTEXTS:
            self.core.fork(parent.id, "")

    def submit(self) -> None:
        """Ask for tokens, labels or log-probabilities."""
        sequence = self.any_idle()
        if sequence is None or len(self.core.jobs) >= MOST_JOBS:
            return
        before, kind = sequence.tokens.copy(), self.rng.randrange(8)
        count = 1 + int(self.rng.expovariate(1 / 40))
        try:
            if kind == 0:
                job = self.core.submit(sequence.id, LabelsGoal((1, 2)))
            elif kind == 1:
                job = self.core.submit(sequence.id, LogprobsGoal(count), extra=[7] * count)
            else:
                goal = GenerateGoal(0 if kind == 2 else count, Sampling(), frozenset())
                job = self.core.submit(sequence.id, goal)
        except (ContextBusy, ContextTooLong, EmptyPrompt, Impossible) as refusal:
            self.counts[type(refusal).__name__] += 1
        else:
            self.asked.append((job, before))

    def append(self) -> None:
        """Put some tokens behind one."""
        if (sequence := self.any_idle()) is not None:
            self.core.append(sequence.id, [self.rng.randrange(VOCAB) for _ in range(self.rng.randrange(1, 20))])

    def truncate(self) -> None:
        """Cut one."""
        if (sequence := self.any_idle()) is not None:
            self.core.truncate(sequence.id, self.rng.randrange(len(sequence.tokens) + 1))

    def rebase(self) -> None:
        """Give one another text."""
        if (sequence := self.any_idle()) is not None:
            self.core.rebase(sequence.id, self.tokens())

    def pin(self) -> None:
        """Pin one, and unpin all that were; what is pinned is small."""
        for sequence in self.core.sequences.values():
            sequence.pinned = False
        if (chosen := self.any()) is not None:
            chosen.pinned = True

    def cancel(self) -> None:
        """Cancel a request, or do so while its step is in flight."""
        if not self.core.jobs:
            return
        job = self.rng.choice(list(self.core.jobs.values()))
        self.maybe_in_flight(lambda: self.core.end(job, Phase.CANCELLED, error=Cancelled()))

    def close(self) -> None:
        """Close a context, or do so while its step is in flight."""
        if (sequence := self.any()) is not None:
            context: ContextId = sequence.id
            self.maybe_in_flight(lambda: self.core.close(context))

    def fail(self) -> None:
        """Let the next step fail in some way."""
        kind = self.rng.choice(["fail", "fail_row", "lose_row"])
        setattr(self.backend.faults, kind, frozenset({self.backend.num_steps}))

    def evict(self) -> None:
        """Take a context's pages, or do so while its step is in flight."""
        if (sequence := self.any()) is not None:
            all_views = self.rng.random() < 0.5
            target = sequence
            self.maybe_in_flight(lambda: self.core.evict(target, all_views=all_views, was_running=False))

    def maybe_in_flight(self, action: Callable[[], object]) -> None:
        """Do something now, or in the middle of the next step."""
        if self.rng.random() < 0.5:
            self.backend.faults.before_step = {self.backend.num_steps: lambda: (action(), None)[1]}
            if self.driver.step():
                self.backend.faults.before_step = {}
                return
            self.backend.faults.before_step = {}
        action()


def main() -> None:
    """Run the soak from the command line."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    started, counts = time.perf_counter(), Counter[str]()
    for pages in POOLS:
        soak = Soak(seed, pages=pages)
        soak.run(operations // len(POOLS), check_every=200)
        counts.update(soak.counts + soak.core.counters)
    seconds = time.perf_counter() - started
    lines = [f"{operations:,} operations, seed {seed}: nothing lost, nothing wrong, in {seconds:.0f} s"]
    lines += [f"{name:>18} {count:,}" for name, count in sorted(counts.items())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
