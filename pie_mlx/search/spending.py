"""What a run has spent and what it may still spend."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pie_mlx.engine import Completion
from pie_mlx.search.node import TokenCounts
from pie_mlx.search.params import SearchParams


@dataclass(slots=True)
class Spending:
    """Counts nodes, tokens, calls and seconds against the budgets."""

    params: SearchParams
    nodes: int = 0
    """Nodes below the root."""
    tokens: TokenCounts = field(default_factory=TokenCounts)
    """Of all requests; a branch counts the tokens it brings itself, whatever the pool had to recompute."""
    calls: int = 0
    expansions_without_gain: int = 0
    started_s: float = field(default_factory=time.monotonic)
    paused_s: float = 0.0
    """Seconds that the run stood still at the user's wish: not counted against the budget."""

    @property
    def wall_s(self) -> float:
        """Seconds since the start, pauses included."""
        return time.monotonic() - self.started_s

    @property
    def tokens_used(self) -> int:
        """Tokens computed and generated."""
        return self.tokens.prompt - self.tokens.cached + self.tokens.completion

    @property
    def tokens_left(self) -> int | None:
        """Tokens that may still be spent; None without a budget."""
        budget = self.params.budget_tokens
        return None if budget is None else max(budget - self.tokens_used, 0)

    @property
    def nodes_left(self) -> int | None:
        """Nodes that may still be written; None without a budget."""
        budget = self.params.budget_nodes
        return None if budget is None else max(budget - self.nodes, 0)

    def add(self, counts: TokenCounts) -> None:
        """Count one request."""
        self.calls += 1
        self.tokens += counts

    def is_late(self) -> bool:
        """Whether the time is over."""
        budget = self.params.budget_seconds
        return budget is not None and self.wall_s - self.paused_s >= budget

    def used_up(self) -> str | None:
        """Name the budget that is used up; None where all have something left."""
        patience = self.params.patience
        for name, is_used in (
            ("nodes", self.nodes_left == 0),
            ("tokens", self.tokens_left == 0),
            ("seconds", self.is_late()),
            ("patience", patience is not None and self.expansions_without_gain >= patience),
        ):
            if is_used:
                return name
        return None


def count_tokens(completion: Completion, own_prompt: int | None = None) -> TokenCounts:
    """Return what a request cost.

    ``own_prompt`` is how many of the prompt's tokens are new with this request; the others count as cached even
    where the pool had to compute them again, so that a budget does not depend on the pool's size.
    """
    prompt = completion.prompt_tokens
    cached = completion.cached_tokens if own_prompt is None else max(prompt - own_prompt, 0)
    return TokenCounts(prompt, cached, completion.completion_tokens)
