"""How far back a model looks whose every attention layer is bounded, and what its contexts keep of their K/V.

A page that lies behind every window is let go: its tokens stay in the sequence, their K/V is never read again.
A quarter of the window more is kept, so that a few tokens can be taken back without computing anything again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The widest window of a model's attention layers."""

    tokens: int
    """Tokens that a row of that layer sees, itself included."""
    chunk: int = 1
    """Tokens of one context that a step computes at most."""

    @property
    def num_kept(self) -> int:
        """Earlier tokens whose K/V a context keeps at least, where it has so many."""
        return self.tokens - 1 + max(1, self.tokens // 4)

    def first_needed(self, num_tokens: int) -> int:
        """Return the first position that the token after ``num_tokens`` sees."""
        return max(0, num_tokens - self.tokens + 1)

    def first_kept(self, num_tokens: int) -> int:
        """Return the first position that a context of ``num_tokens`` keeps."""
        return max(0, num_tokens - self.num_kept)

    def most_pages(self, page_size: int, num_leaving: int = 0) -> int:
        """Return how many pages a context holds at most, however long it grows; ``num_leaving`` tokens leave again."""
        return -(-(self.num_kept + num_leaving + self.chunk) // page_size) + 1

    def least_pages(self, page_size: int, num_leaving: int = 0) -> int:
        """Return how many pages a long context must be able to hold, to be computed token by token."""
        return -(-(self.num_kept + num_leaving + 1) // page_size) + 1
