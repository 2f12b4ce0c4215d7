"""Earlier recurrent states of a context, so that taking tokens back need not recompute all of it.

A state is opaque and immutable: keeping one costs its bytes once, however many forks share it.
"""

from __future__ import annotations

MAX_KEPT = 4
"""States kept for a context besides its own and the one before it."""


class Checkpoints:
    """States at some positions, ascending; the oldest and the newest outlive those between them."""

    __slots__ = ("_kept", "_last")

    def __init__(self) -> None:
        self._kept: list[tuple[int, object]] = []
        self._last: tuple[int, object] | None = None

    def __len__(self) -> int:
        return len(self._kept) + (self._last is not None)

    def keep(self, position: int, state: object) -> None:
        """Keep the state after ``position`` tokens."""
        self._forget_behind(position)
        if self._kept and self._kept[-1][0] == position:
            return
        self._kept.append((position, state))
        if len(self._kept) > MAX_KEPT:
            del self._kept[1]

    def pass_by(self, position: int, state: object) -> None:
        """Keep the state before the newest segment, until the next one."""
        self._last = (position, state)

    def latest(self, position: int) -> tuple[int, object | None]:
        """Forget what lies behind ``position``; return the last (position, state) that is left, or (0, None)."""
        self._forget_behind(position)
        known = [*self._kept, *([self._last] if self._last else [])]
        return max(known, key=lambda each: each[0]) if known else (0, None)

    def copy(self) -> Checkpoints:
        """Return the same checkpoints for a fork."""
        made = Checkpoints()
        made._kept = self._kept.copy()
        made._last = self._last
        return made

    def _forget_behind(self, position: int) -> None:
        """Drop the states after more than ``position`` tokens."""
        while self._kept and self._kept[-1][0] > position:
            self._kept.pop()
        if self._last is not None and self._last[0] > position:
            self._last = None
