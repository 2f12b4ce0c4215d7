"""The figures of a chat in one line: what the reply took, and how full context and pool are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pie_mlx.chat.session import ChatSession


@dataclass(frozen=True, slots=True)
class Status:
    """Figures of the current branch, its last reply and the pool; None where there is none yet."""

    model: str
    branch: str
    num_tokens: int
    limit_tokens: int
    decode_tps: float | None
    ttft_s: float | None
    prefix_hit: float | None
    """Share of the last prompt that was there already, 0 to 1."""
    held_pages: int
    total_pages: int
    shared_pages: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the line's parts, the most telling first."""
        share = round(100 * self.num_tokens / self.limit_tokens)
        parts = [self.model, f"ctx {self.num_tokens:,}/{self.limit_tokens:,} {share} %"]
        if self.decode_tps is not None:
            parts.append(f"{self.decode_tps:.0f} tok/s")
        if self.ttft_s is not None:
            parts.append(f"TTFT {1000 * self.ttft_s:,.0f} ms")
        if self.prefix_hit is not None:
            parts.append(f"prefix hit {100 * self.prefix_hit:.0f} %")
        parts.append(f"pages {self.held_pages:,}/{self.total_pages:,} (shared {self.shared_pages:,})")
        return tuple(parts)

    def line(self, width: int | None = None) -> str:
        """Return the line; what does not fit into ``width`` columns is left out from the end, at last the model."""
        parts = list(self.parts)
        if width is not None and len(" · ".join(parts[:2])) > width:
            return parts[1][:width]
        if width is not None and len(" · ".join(parts)) > width:
            parts[-1] = parts[-1].partition(" (")[0]
        while width is not None and len(parts) > 1 and len(" · ".join(parts)) > width:
            parts.pop()
        return " · ".join(parts)


def read_status(session: ChatSession) -> Status:
    """Read the figures of a session now."""
    pages = session.engine.readings().pages
    last = session.last
    return Status(
        model=session.model,
        branch=session.branch,
        num_tokens=session.num_tokens,
        limit_tokens=session.limit_tokens,
        decode_tps=None if last is None else last.decode_tps,
        ttft_s=None if last is None else last.ttft_s,
        prefix_hit=None if last is None or not last.prompt_tokens else last.cached_tokens / last.prompt_tokens,
        held_pages=pages.held,
        total_pages=pages.total,
        shared_pages=pages.shared,
    )
