"""How many branches may run at the same time: an estimate in pages, before any of them starts.

A fork takes no page, but every branch that writes starts at most one page of its own more than its tokens
fill, because only one of the siblings may go on in the page they share.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageEstimate:
    """What a level of a search may hold at its peak, in pages."""

    shared: int
    """The prompt, viewed by all branches."""
    per_branch: int
    """One branch that writes its thought."""
    per_score: int
    """One fork that is judged."""
    branches: int
    """Branches that were wished for at the same time."""

    @property
    def peak(self) -> int:
        """Pages at the widest moment: the prompt, every branch's own, and every branch's judging fork."""
        return self.shared + self.branches * (self.per_branch + self.per_score)

    @property
    def least(self) -> int:
        """Pages that one branch at a time needs."""
        return self.shared + self.per_branch + self.per_score

    def fitting(self, available: int) -> int:
        """Return how many branches fit ``available`` pages: at least one, the engine then decides."""
        room = max(available - self.shared, 0) // (self.per_branch + self.per_score)
        return max(1, min(self.branches, room))


def pages_for(num_tokens: int, page_size: int) -> int:
    """Return the pages that ``num_tokens`` fill, the last one in part."""
    return -(-num_tokens // page_size)


def estimate(
    *, prompt_tokens: int, branches: int, thought_tokens: int, judge_tokens: int, page_size: int
) -> PageEstimate:
    """Estimate the peak of a level with ``branches`` branches; ``judge_tokens`` 0 means that no fork is judged."""
    return PageEstimate(
        shared=pages_for(prompt_tokens, page_size),
        per_branch=pages_for(thought_tokens, page_size) + 1,
        per_score=pages_for(judge_tokens, page_size) + 1 if judge_tokens else 0,
        branches=branches,
    )


def waves(num: int, size: int) -> list[range]:
    """Cut ``num`` branches into consecutive groups of at most ``size``, as equal as they can be."""
    groups = -(-num // max(size, 1))
    edges = [num * i // groups for i in range(groups + 1)] if groups else [0]
    return [range(low, high) for low, high in itertools.pairwise(edges)]
