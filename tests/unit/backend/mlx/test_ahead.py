"""A pass that was built before its tokens were known gives what it would have given; a wrong guess costs nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pie_mlx.backend.base import Outcome, RowFailed, Sampled, Segment, WantNothing, WantToken
from pie_mlx.backend.mlx.backend import BackendOptions
from pie_mlx.backend.mlx.passes import ids_can_be_written
from pie_mlx.sampling import Sampling, uniform

Make = Callable[..., Any]
AHEAD = BackendOptions(builds_ahead=True)
PLAIN = BackendOptions(builds_ahead=False)
GREEDY = WantToken(Sampling(), 0.0)
WARM = Sampling(temperature=0.9, top_p=0.95, num_logprobs=2)
NUM_STEPS = 8


def _after(segments: Sequence[Segment], slots: Sequence[int]) -> list[Segment]:
    """Return the step after ``segments``, written to ``slots``, its tokens unknown."""
    return [
        replace(
            segment,
            tokens=np.zeros(1, dtype=np.int32),
            position=segment.position + len(segment.tokens),
            context_slots=np.concatenate([segment.context_slots, segment.write_slots]),
            write_slots=np.array([slot], dtype=np.int32),
        )
        for segment, slot in zip(segments, slots, strict=True)
    ]


def _decode(driver: Any, sequences: Sequence[Any], wants: Callable[[int, int], WantToken]) -> list[list[Outcome]]:
    """Decode some steps after a first one for each prompt, foreseeing every step; return all outcomes."""
    driver.backend.step([sequence.segment([5 + at, 17, 40 + at]) for at, sequence in enumerate(sequences)])
    tokens = [60 + at for at in range(len(sequences))]
    outcomes = []
    for step in range(NUM_STEPS):
        segments = [seq.segment([tokens[at]], wants(step, at)) for at, seq in enumerate(sequences)]
        came = driver.backend.step(segments, lambda now=segments: _after(now, driver.free[: len(now)]))
        tokens = [outcome.token for outcome in came]
        outcomes.append(came)
    return outcomes


def _wants(step: int, at: int) -> WantToken:
    """Want a greedy token of even rows, and a drawn one with alternatives of odd ones."""
    return WantToken(WARM, uniform(3, step * 7 + at)) if at % 2 else GREEDY


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_foreseen_step_gives_what_it_would_have_given(
    kind: str, num_rows: int, make_driver: Make, new_sequence: Make
) -> None:
    """Tokens, log-probabilities and alternatives are the same to the last bit; all steps but the first were ready."""
    answers = []
    for options in (PLAIN, AHEAD):
        driver = make_driver(kind, options)
        before = driver.backend.num_ahead
        answers.append(_decode(driver, [new_sequence(driver, at) for at in range(num_rows)], _wants))
        assert driver.backend.num_ahead - before == (NUM_STEPS - 1 if options is AHEAD else 0)
    assert answers[0] == answers[1]


def _other_slot(segments: list[Segment]) -> list[Segment]:
    return [replace(segments[0], write_slots=segments[0].write_slots + 1), *segments[1:]]


def _other_context(segments: list[Segment]) -> list[Segment]:
    return [replace(segments[0], context_slots=segments[1].context_slots), *segments[1:]]


def _one_less(segments: list[Segment]) -> list[Segment]:
    return segments[1:]


def _other_order(segments: list[Segment]) -> list[Segment]:
    return segments[::-1]


def _other_reading(segments: list[Segment]) -> list[Segment]:
    return [replace(segments[0], want=WantToken(WARM, 0.5)), *segments[1:]]


def _no_want(segments: list[Segment]) -> list[Segment]:
    return [replace(segments[0], want=WantNothing()), *segments[1:]]


def _impossible(segments: list[Segment]) -> list[Segment]:
    return [replace(segments[0], context_slots=segments[0].context_slots[:0].reshape(0, 1)), *segments[1:]]


@pytest.mark.parametrize(
    "spoil", [_other_slot, _other_context, _one_less, _other_order, _other_reading, _no_want, _impossible]
)
def test_a_wrong_guess_changes_nothing(spoil: Callable[..., Any], make_driver: Make, new_sequence: Make) -> None:
    """Whatever was foreseen wrongly, the step is built anew, and nothing of the guess was written."""
    answers = []
    for options in (PLAIN, AHEAD):
        driver = make_driver("llama", options)
        backend, before = driver.backend, driver.backend.num_ahead
        sequences = [new_sequence(driver, at) for at in range(2)]
        backend.step([sequence.segment([5 + at, 17]) for at, sequence in enumerate(sequences)])
        first = [sequence.segment([60], GREEDY) for sequence in sequences]
        came = [backend.step(first, lambda now=first, d=driver: spoil(_after(now, d.free[:2])))]
        came += [backend.step([each.segment([token], GREEDY) for each in sequences]) for token in (61, 62)]
        answers.append(came)
        assert backend.num_ahead == before
    assert answers[0] == answers[1]


def test_a_bad_row_drops_what_was_built(make_driver: Make, new_sequence: Make) -> None:
    """Rows are repeated alone after one went wrong, and the pass that was built on them is never run."""
    driver = make_driver("qwen3", AHEAD)
    weight = driver.module.model.embed_tokens.weight
    healthy = mx.array(weight)
    weight[150] = float("nan")
    try:
        sequences = [new_sequence(driver, at) for at in range(2)]
        driver.backend.step([sequence.segment([5, 17]) for sequence in sequences])
        bad = [sequences[0].segment([150], GREEDY), sequences[1].segment([60], GREEDY)]
        before = driver.backend.num_ahead
        failed, good = driver.backend.step(bad, lambda: _after(bad, driver.free[:2]))
        assert isinstance(failed, RowFailed)
        assert isinstance(good, Sampled)
        (after,) = driver.backend.step([sequences[1].segment([good.token], GREEDY)])
        assert isinstance(after, Sampled)
        assert driver.backend.num_ahead == before
    finally:
        driver.module.model.embed_tokens.weight = healthy


def test_writing_k_and_v_drops_what_was_built(make_driver: Make, new_sequence: Make) -> None:
    """A pass that was built over the arena before something else was written to it would undo that."""
    driver = make_driver("llama", AHEAD)
    sequence = new_sequence(driver, 1)
    segment = sequence.segment([5, 17, 30], GREEDY)
    driver.backend.step([segment], lambda: _after([segment], driver.free[:1]))
    kept = driver.backend.read_slots(segment.write_slots)
    driver.backend.write_slots(segment.write_slots, {name: array * 0 for name, array in kept.items()})
    before = driver.backend.num_ahead
    driver.backend.step([sequence.segment([60], GREEDY)])
    assert driver.backend.num_ahead == before
    zeroed = driver.backend.read_slots(segment.write_slots)
    assert all(not array.any() for array in zeroed.values())


def test_steps_built_ahead_write_in_place(make_driver: Make, new_sequence: Make) -> None:
    """The pass that waits holds the arena's arrays, and still nothing is copied: the peak is below one array more."""
    driver = make_driver("llama", AHEAD)
    driver.backend.allocate(20_000, 16)
    one_array = driver.backend.memory()["arena"] // 8
    sequences = [new_sequence(driver, at) for at in range(2)]
    before, active = driver.backend.num_ahead, driver.backend.memory()["active"]
    mx.reset_peak_memory()
    _decode(driver, sequences, _wants)
    assert driver.backend.num_ahead - before == NUM_STEPS - 1
    assert driver.backend.memory()["peak"] - active < one_array


def test_a_wrong_guess_is_gone_at_once(kind: str, make_driver: Make, new_sequence: Make) -> None:
    """What was built in vain lets go of the arena without a collection: the next writes are in place all the same."""
    driver = make_driver(kind, AHEAD)
    driver.backend.allocate(20_000, 16)
    arrays = 2 * driver.backend.facts.num_layers
    one_array = driver.backend.memory()["arena"] // arrays
    sequences = [new_sequence(driver, at) for at in range(2)]
    driver.backend.step([sequence.segment([5 + at, 17]) for at, sequence in enumerate(sequences)])
    first = [sequence.segment([60], GREEDY) for sequence in sequences]
    gc.collect()
    gc.disable()
    try:
        driver.backend.step(first, lambda: _other_slot(_after(first, driver.free[:2])))
        active = driver.backend.memory()["active"]
        mx.reset_peak_memory()
        driver.backend.step([sequence.segment([61], GREEDY) for sequence in sequences])
        assert driver.backend.memory()["peak"] - active < one_array
    finally:
        gc.enable()


def test_the_probe_knows_this_device() -> None:
    """An input that is written after its graph was built is what the graph reads."""
    assert ids_can_be_written()
