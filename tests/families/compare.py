"""Run a tiny model through the engine and compare every token with mlx-lm's own caches."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx import nn

from pie_mlx.backend.mlx.backend import MlxBackend, ModelIdentity
from pie_mlx.backend.mlx.layout import own_caches
from pie_mlx.engine import Completion, Engine, EngineSettings
from pie_mlx.errors import PieError
from pie_mlx.models.load import check_architecture
from pie_mlx.sampling import Sampling
from tests.families.precision import Precision, set_precision
from tests.families.tiny import VOCAB, Json, tiny_model

Logits = npt.NDArray[np.float32]

_LENGTHS = (3, 9, 17, 30, 41)
_SHARED = 23
"""The two longest sequences are forks of one context of this length."""
_STEPS = 40
_TOP = 5
TOLERANCE = 2e-4
"""Largest difference of a log-probability, relative to the largest logit."""
_ROUNDING = 2.0
"""How much further than mlx-lm's own a 16-bit answer may be from what the same weights say in float32."""


class Verdict(enum.Enum):
    """What became of an architecture."""

    WORKS = "works"
    REFUSED = "refused"
    DIFFERS = "differs"
    UNTESTED = "untested"
    """It runs on no device of this machine, with mlx-lm neither."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one architecture."""

    name: str
    verdict: Verdict
    why: str = ""
    form: str = ""
    has_state: bool = False
    error: float = 0.0
    """Largest relative difference that was seen: from mlx-lm; with 16 bits, from the same weights in float32."""
    rounding: float = 0.0
    """With 16 bits: how far mlx-lm itself is from the same weights in float32."""
    precision: Precision = Precision.FLOAT32
    most_let_go: int = 0
    """Most tokens of one context whose K/V lay behind every window and was given back."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What the engine said after a prompt: its tokens, or label probabilities."""

    prompt: tuple[int, ...]
    completion: Completion


def examine(name: str, changes: Json | None = None, precision: Precision = Precision.FLOAT32) -> Finding:
    """Build, load, run and compare one architecture, with some fields of its config changed."""
    try:
        check_architecture(name, name)
        module, _ = tiny_model(name, changes)
    except PieError as error:
        return Finding(name, Verdict.REFUSED, error.message)
    set_precision(module, precision)
    if _needs_metal(module):
        return Finding(name, Verdict.UNTESTED, "mlx-lm runs it on a GPU only", precision=precision)
    judged = _run_and_judge(name, module, precision)
    return replace(judged, precision=precision)


def _run_and_judge(name: str, module: nn.Module, precision: Precision) -> Finding:
    """Run a module through an engine and compare what was said."""
    identity = ModelIdentity(name, f"tiny-{name}", 512, frozenset())
    made: list[MlxBackend] = []

    def load() -> MlxBackend:
        try:
            made.append(MlxBackend(module, identity))
        except PieError:
            mx.clear_streams()  # this thread ends now, and a stream that outlives it can abort the process
            raise
        return made[0]

    settings = EngineSettings(pool_pages=80, page_size=8, prefill_chunk=11)
    try:
        engine = Engine.start(load, settings, None)
    except PieError as error:
        return Finding(name, Verdict.REFUSED, error.message)
    form = made[0].form.value
    with engine:
        has_state = engine.facts.has_state
        try:
            said, most_let_go = _run(engine)
            engine.check()
        except PieError as error:
            return Finding(name, Verdict.DIFFERS, f"failed: {error.message}", form, has_state, float("inf"))
    rounding, judge = 0.0, module
    if precision.has_16_bits:
        judge = deepcopy(module)
        judge.set_dtype(mx.float32)
        rounding = max(_rounding(module, judge, each) for each in said)
    worst, why = max(_compare(judge, each) for each in said)
    verdict = Verdict.WORKS if worst <= max(TOLERANCE, _ROUNDING * rounding) else Verdict.DIFFERS
    shown = "" if verdict is Verdict.WORKS else why
    return Finding(name, verdict, shown, form, has_state, error=worst, rounding=rounding, most_let_go=most_let_go)


def _needs_metal(module: nn.Module) -> bool:
    """Whether mlx-lm itself cannot run the model here for want of a GPU."""
    try:
        mx.eval(module(mx.array([[1, 2, 3]])))
    except RuntimeError as error:
        if "No Metal back-end" in str(error) or "only supports float32" in str(error):
            return True
        raise
    return False


def _prompts() -> list[list[int]]:
    """Return the prompts; the last two share a prefix."""
    made = [[(5 + 11 * i + 29 * at + i * i) % VOCAB for i in range(length)] for at, length in enumerate(_LENGTHS)]
    made[4][:_SHARED] = made[3][:_SHARED]
    return made


def _run(engine: Engine) -> tuple[list[_Said], int]:
    """Run a ragged batch, forks of what it left, and labels on a context that is resident in full.

    Returns what was said, and the most tokens of one context that were let go.
    """
    sampling = Sampling(num_logprobs=_TOP)
    said: list[_Said] = []
    prompts = _prompts()
    with engine.context(prompts[3][:_SHARED]) as base:
        base.prefill().result()
        contexts = [engine.context(prompt) for prompt in prompts[:3]]
        for prompt in prompts[3:]:
            contexts.append(base.fork())
            contexts[-1].append(prompt[_SHARED:])
        requests = [each.submit(max_tokens=_STEPS, sampling=sampling) for each in contexts]
        said += [_Said(tuple(prompt), each.result()) for prompt, each in zip(prompts, requests, strict=True)]
        let_go = max(each.num_let_go for each in engine.readings().contexts)
        forks = [contexts[at].fork() for at in (1, 1, 4)]
        for at, fork in enumerate(forks):
            fork.append([7 + at, 11])
        whole = [tuple(fork.tokens) for fork in forks]
        requests = [each.submit(max_tokens=4, sampling=sampling) for each in forks]
        said += [_Said(tokens, each.result()) for tokens, each in zip(whole, requests, strict=True)]
        contexts[2].prefill().result()
        labels = contexts[2].submit_labels([3, 50]).result()
        said.append(_Said(tuple(contexts[2].tokens), labels))
        contexts[4].truncate(_SHARED + 2)
        again = contexts[4].generate(max_tokens=3, sampling=sampling)
        said.append(_Said(tuple(prompts[4][: _SHARED + 2]), again))
        for each in [*contexts, *forks]:
            each.close()
    return said, let_go


def _compare(module: nn.Module, said: _Said) -> tuple[float, str]:
    """Return the largest relative difference from mlx-lm, and where it is."""
    answer = said.completion
    if answer.label_probs:
        logits = _reference(module, said.prompt, ())[0]
        expected = _log_softmax(logits)[[3, 50]]
        gap = np.abs(np.log(np.array(answer.label_probs)) - expected).max()
        return float(gap) / _size(logits), "label probabilities"
    worst, why = 0.0, ""
    for step, logits in enumerate(_reference(module, said.prompt, answer.tokens[:-1])):
        logprobs = _log_softmax(logits)
        error = _gap(answer.top_logprobs[step], answer.tokens[step], logprobs) / _size(logits)
        if not error <= worst:
            worst, why = error, f"prompt of {len(said.prompt)} tokens, step {step}: {error:.2g}"
    return worst, why


def _gap(shown: Iterable[tuple[int, float]], token: int, logprobs: npt.NDArray[np.float64]) -> float:
    """Return how far shown log-probabilities, and the choice of a token, are from ``logprobs``."""
    gaps = [abs(value - float(logprobs[each])) for each, value in shown]
    return max([*gaps, float(logprobs.max() - logprobs[token])])


def _rounding(module: nn.Module, judge: nn.Module, said: _Said) -> float:
    """Return the largest relative difference of mlx-lm's own answers from those of ``judge``, on the same tokens."""
    worst = 0.0
    tokens = said.completion.tokens[:-1]
    pairs = zip(_reference(module, said.prompt, tokens), _reference(judge, said.prompt, tokens), strict=True)
    for own, true in pairs:
        logprobs = _log_softmax(own)
        top = np.argsort(logprobs)[-_TOP:].tolist()
        shown = [(token, float(logprobs[token])) for token in top]
        worst = max(worst, _gap(shown, top[-1], _log_softmax(true)) / _size(true))
    return worst


def _size(logits: Logits) -> float:
    """Return the largest logit: what differences are relative to."""
    return max(float(np.abs(logits).max()), 1e-6)


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Return log-probabilities."""
    wide = logits.astype(np.float64) - float(logits.max())
    out: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return out


def _reference(module: nn.Module, prompt: Sequence[int], tokens: Sequence[int]) -> list[Logits]:
    """Return mlx-lm's logits after the prompt and after each of ``tokens``."""
    caches: list[Any] = own_caches(module)
    rows = [_last(module, prompt, caches)]
    rows += [_last(module, [token], caches) for token in tokens]
    return rows


def _last(module: nn.Module, tokens: Sequence[int], caches: list[Any]) -> Logits:
    """Run tokens; return the logits after the last."""
    logits = module(mx.array([list(tokens)]), cache=caches)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)
