"""Labels and log-probabilities: one forward pass, whatever is resident, chunked, cached or preempted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults, sequence_hash
from pie_mlx.engine import Engine
from pie_mlx.errors import Cancelled
from pie_mlx.sampling import mix

StartEngine = Callable[..., Engine]


def text(kind: int, count: int) -> list[int]:
    """Return a text of its own."""
    return [(kind * 37 + at * 11 + kind * at) % 256 for at in range(count)]


def label_probs(tokens: list[int], labels: list[int]) -> tuple[float, ...]:
    """Return the fake device's label probabilities."""
    raw = [mix(sequence_hash(tokens) ^ label) % 1000 + 1 for label in labels]
    return tuple(weight / (sum(raw) + 500) for weight in raw)


def logprobs(tokens: list[int], targets: list[int]) -> tuple[float, ...]:
    """Return the fake device's log-probabilities of ``targets`` behind ``tokens``."""
    sequence, found = list(tokens), []
    for target in targets:
        found.append(-(mix(sequence_hash(sequence) ^ target) % 1000) / 100)
        sequence.append(target)
    return tuple(found)


@pytest.mark.parametrize("chunk", [1, 5, 16, 512])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_scores_do_not_depend_on_chunks(start: StartEngine, count: int, chunk: int) -> None:
    """However the pass is cut, and whatever is resident already, the numbers are the sequence's own."""
    engine = start(16, prefill_chunk=chunk)
    tokens, targets = text(1, count), text(2, 33)
    context = engine.context(tokens)
    for _ in range(2):
        assert context.submit_logprobs(targets).result(20).logprobs == logprobs(tokens, targets)
        assert context.tokens == tuple(tokens), "scored tokens do not join the sequence"
        assert context.num_resident <= count
        assert context.submit_labels([9, 3]).result(20).label_probs == label_probs(tokens, [9, 3])
        assert context.num_resident == count


def test_labels_on_a_resident_context_compute_one_token(start: StartEngine) -> None:
    """All but the last token is there already: its logits are all that is missing."""
    engine = start(16)
    context = engine.context(text(1, 40))
    context.submit_labels([1]).result(20)
    done = context.submit_labels([1, 2]).result(20)
    assert (done.prefilled_tokens, done.cached_tokens, done.completion_tokens) == (1, 39, 0)
    assert done.finish_reason == "scored"


def test_forks_score_in_one_batch(start: StartEngine) -> None:
    """Many candidates behind one prefix: only they are computed, side by side."""
    backend = FakeBackend()
    engine = start(64, backend)
    root = engine.context(text(1, 100))
    root.prefill().result(20)
    rows, forks = backend.num_rows, [root.fork() for _ in range(8)]
    requests = [fork.submit_logprobs(text(at, 10)) for at, fork in enumerate(forks)]
    for at, request in enumerate(requests):
        assert request.result(20).logprobs == logprobs(text(1, 100), text(at, 10))
    assert backend.num_rows - rows == 8 * 10, "the prefix's last token, and all targets but the last"
    assert backend.widest == 8


def test_scores_survive_eviction_in_the_middle(start: StartEngine) -> None:
    """Taken back between two chunks, a request goes on by recomputing, and no score comes twice or is missing."""
    backend = FakeBackend()
    engine = start(16, backend, prefill_chunk=8)
    tokens, targets = text(1, 30), text(2, 50)
    context = engine.context(tokens)

    def take() -> None:
        with engine.locked() as core:
            core.evict(core.get(context.id), all_views=True, was_running=True)

    backend.faults.before_step = {5: take, 8: take, 9: take}
    assert context.submit_logprobs(targets).result(20).logprobs == logprobs(tokens, targets)


def test_scores_under_pressure_equal_those_without(start: StartEngine) -> None:
    """A pool for two at a time, generation beside it: preempted or not, the same numbers."""
    engine = start(9, prefill_chunk=16)
    contexts = [engine.context(text(kind, 35)) for kind in range(8)]
    growing = engine.context(text(50, 20)).submit(max_tokens=60)
    requests = [context.submit_logprobs(text(60 + kind, 40)) for kind, context in enumerate(contexts)]
    for kind, request in enumerate(requests):
        assert request.result(60).logprobs == logprobs(text(kind, 35), text(60 + kind, 40))
    assert len(growing.result(60).tokens) == 60


@pytest.mark.parametrize("cached", [15, 16, 17, 32, 48])
def test_cached_prefix_never_reaches_over_a_wanted_row(start: StartEngine, cached: int) -> None:
    """A prefix hit spares the prompt, but every target's row is computed."""
    engine = start(32)
    whole = text(1, 48)
    engine.context([*whole, 1]).generate(max_tokens=1)
    context = engine.context(whole[:cached])
    assert context.submit_logprobs(whole[cached:] or [7]).result(20).logprobs == logprobs(
        whole[:cached], whole[cached:] or [7]
    )
    assert engine.context(whole).submit_labels([5]).result(20).label_probs == label_probs(whole, [5])


def test_closing_a_context_in_the_middle_of_a_scoring_counts_every_page(start: StartEngine) -> None:
    """What the scoring itself had computed is given back, and counted, with the rest."""
    faults = Faults(hang=frozenset({1}))
    engine = start(32, FakeBackend(faults=faults), prefill_chunk=64, prefix_cache=False)
    context = engine.context(text(1, 20))
    request = context.submit_logprobs(text(2, 100))
    assert faults.is_hanging.wait(20)
    free = engine.readings().pages.free
    freed = context.close()
    assert freed == engine.readings().pages.free - free == 32 - free
    faults.release.set()
    with pytest.raises(Cancelled):
        request.result(20)


def test_models_with_state_recompute_what_cannot_be_wound_back(start: StartEngine) -> None:
    """A recurrent state cannot be truncated: the context is computed again, never continued from a wrong state."""
    engine = start(32, FakeBackend(has_state=True))
    context = engine.context(text(1, 40))
    context.submit_labels([1]).result(20)
    done = context.submit_labels([1]).result(20)
    assert done.prefilled_tokens == 40
    assert context.submit_logprobs([4, 5]).result(20).logprobs == logprobs(text(1, 40), [4, 5])
    first = context.generate(max_tokens=5)
    with engine.locked() as core:
        core.evict(core.get(context.id), all_views=False, was_running=False)
    fork = context.fork()
    assert fork.generate(max_tokens=5).tokens == context.generate(max_tokens=5).tokens
    context.rebase(text(1, 30))
    assert context.num_resident == 0
    context.rebase(text(1, 40))
    assert context.generate(max_tokens=5).tokens == first.tokens
