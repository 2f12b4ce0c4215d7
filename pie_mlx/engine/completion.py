"""What a request gives back: pieces while it runs, a completion at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "context_full", "cancelled", "scored"]
"""Why a request ended well: a stop token or string, its length, the model's context, or nothing to generate.

``cancelled`` appears only in :attr:`Request.partial`; a cancelled request raises."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A bit of output: the text that is now certain, and the tokens behind it (text may lag behind)."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The whole result of a request; ``finish_reason`` is never blank."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]
    label_probs: tuple[float, ...] | None
    """For a labels request: probabilities over the whole vocabulary, in the order asked."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose K/V was there already: resident in the context or found in the prefix index."""
    prefilled_tokens: int
    """Prompt tokens that were computed, recomputations after an eviction included."""
    ttft_s: float | None
    """Seconds from submission to the first token; None if there was none."""
    wall_s: float
    num_preemptions: int = 0

    @property
    def completion_tokens(self) -> int:
        """Tokens that were generated."""
        return len(self.tokens)

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first; None when there are fewer than two."""
        if self.ttft_s is None or len(self.tokens) < 2 or self.wall_s <= self.ttft_s:
            return None
        return (len(self.tokens) - 1) / (self.wall_s - self.ttft_s)
