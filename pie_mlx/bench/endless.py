"""A model without an end: for a benchmark, whose every row must decode its full length.

Only the facts change: the engine below computes what it always computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pie_mlx.backend.base import Backend, BackendFacts, Foresee, IntArray, Outcome, Segment

if TYPE_CHECKING:
    from pie_mlx.backend.mlx.backend import MlxBackend


class EndlessBackend(Backend):
    """A backend that knows no end-of-sequence token."""

    def __init__(self, inner: MlxBackend) -> None:
        """Pass everything on to ``inner``."""
        self.inner = inner

    @property
    def facts(self) -> BackendFacts:
        """The facts of the inner backend, without its end-of-sequence ids."""
        return replace(self.inner.facts, eos_ids=frozenset())

    def allocate(self, num_pages: int, page_size: int) -> None:
        """Make the arena."""
        self.inner.allocate(num_pages, page_size)

    def step(self, segments: Sequence[Segment], foresee: Foresee | None = None) -> list[Outcome]:
        """Run one forward pass."""
        return self.inner.step(segments, foresee)

    def read_slots(self, slots: IntArray) -> dict[str, npt.NDArray[np.generic]]:
        """Copy K/V out."""
        return self.inner.read_slots(slots)

    def write_slots(self, slots: IntArray, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        """Copy K/V in."""
        self.inner.write_slots(slots, arrays)

    def memory(self) -> dict[str, int]:
        """Return byte counts by name."""
        return self.inner.memory()

    def close(self) -> None:
        """Free the arena and the model."""
        self.inner.close()


def twin(backend: EndlessBackend) -> EndlessBackend:
    """Return a backend of its own over the same weights; call it on the thread that will use it.

    Weights are evaluated arrays, which any thread may read. Only one of the two may run at a time.
    """
    from pie_mlx.backend.mlx.backend import MlxBackend, ModelIdentity

    facts = backend.facts
    identity = ModelIdentity(facts.model, facts.fingerprint, facts.context_tokens, frozenset())
    return EndlessBackend(MlxBackend(backend.inner.module, identity))
