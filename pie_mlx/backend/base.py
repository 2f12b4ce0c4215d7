"""The protocol between engine and device: a step as plain data, and what comes back for each segment.

A **step** is one forward pass over the **rows** (query tokens) of several **segments**. A segment is a
run of consecutive tokens of one context: its prefill chunk, or its one decode token. The backend

1. writes the K/V of ``segment.tokens[i]`` at slot ``segment.write_slots[i]``;
2. lets row i attend over ``segment.context_slots`` and ``segment.write_slots[: i + 1]``, in that order;
3. answers ``segment.want`` with exactly one outcome: there is no empty result.

All calls but :meth:`Backend.close` come from the one engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pie_mlx.errors import PieError
from pie_mlx.ids import ContextId
from pie_mlx.sampling import Sampling

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WantNothing:
    """Only K/V is wanted: a prefill chunk that is not the last."""


@dataclass(frozen=True, slots=True)
class WantToken:
    """Sample the token that follows the segment's last row.

    ``uniform`` in [0, 1) decides the draw. ``allowed`` (token ids, shape ``[n]``) restricts it, None is all.
    """

    sampling: Sampling
    uniform: float
    allowed: IntArray | None = None


@dataclass(frozen=True, slots=True)
class WantLabels:
    """The probabilities of ``labels`` (token ids, all different) after the segment's last row."""

    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WantLogprobs:
    """The log-probability of ``targets[i]`` after row ``len(tokens) - len(targets) + i``."""

    targets: IntArray


Want = WantNothing | WantToken | WantLabels | WantLogprobs


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one context in a step; shapes: tokens and write_slots ``[n]``, n >= 1."""

    context: ContextId
    tokens: IntArray
    position: int
    """Position of ``tokens[0]`` in the sequence, from 0."""
    context_slots: IntArray
    """Slots of the sequence's tokens before this segment, in order, shape ``[position]``."""
    write_slots: IntArray
    want: Want
    state: object | None = None
    """Opaque recurrent state after ``position`` tokens (models with recurrent layers), else None."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The segment's K/V is in the arena."""

    state: object | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token, its log-probability, and the likeliest (token, log-probability) pairs that were asked for."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    state: object | None = None


@dataclass(frozen=True, slots=True)
class LabelProbs:
    """Probabilities over the whole vocabulary of the labels, in the order asked."""

    probs: tuple[float, ...]
    state: object | None = None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the targets, in the order asked."""

    logprobs: tuple[float, ...]
    state: object | None = None


@dataclass(frozen=True, slots=True)
class RowFailed:
    """This segment failed; the others of the step did not."""

    error: PieError


Outcome = Prefilled | Sampled | LabelProbs | Logprobs | RowFailed


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What the engine must know of a loaded model and its device."""

    model: str
    fingerprint: str
    """Identity of weights and tokenizer: snapshots and prefix entries are only good for the same one."""
    vocab_size: int
    context_tokens: int
    kv_bytes_per_token: int
    num_layers: int
    device: str
    dtype: str
    eos_ids: frozenset[int]
    max_batch_rows: int | None = None
    """Decode rows a step may have, where the model cannot be batched: 1; None is no limit of its own."""
    has_state: bool = False
    """Whether segments carry recurrent state."""
    state_bytes: int = 0
    """Bytes of the recurrent state of one context."""
    window: int | None = None
    """Tokens, itself included, that a row sees in the layer that sees most; None: some layer sees all.

    The slots in ``context_slots`` that lie behind every row's window may be those of the trash page.
    """


Foresee = Callable[[], list[Segment]]
"""Returns the segments of the step that will probably follow, their tokens unknown (0); none where nobody can tell."""


class Backend(Protocol):
    """A loaded model on a device, with one arena of K/V slots."""

    @property
    def facts(self) -> BackendFacts:
        """The model's and device's facts."""
        ...

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the arena: ``(num_pages + 1) * page_size`` slots, page 0 is the trash page."""
        ...

    def step(self, segments: Sequence[Segment], foresee: Foresee | None = None) -> list[Outcome]:
        """Run one forward pass; return one outcome a segment, in order.

        ``foresee`` may be asked once, while the device works, for what the backend may prepare. It is a guess.

        Raises:
            DeviceFailed: the device failed; no segment has a result.
        """
        ...

    def read_slots(self, slots: IntArray) -> dict[str, npt.NDArray[np.generic]]:
        """Copy the K/V of ``slots`` out of the arena: name (``k.0`` …) to array ``[len(slots), ...]``."""
        ...

    def write_slots(self, slots: IntArray, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Copy K/V as :meth:`read_slots` gave it into ``slots``."""
        ...

    def memory(self) -> dict[str, int]:
        """Return byte counts by name: active, peak, cache, arena."""
        ...

    def close(self) -> None:
        """Free the arena and the model."""
        ...
