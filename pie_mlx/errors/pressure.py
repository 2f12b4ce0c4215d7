"""Pressure on the pool: exit code 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors.base import Holder, PieError


@dataclass(eq=False)
class PressureError(PieError):
    """There were not enough pages, and waiting could not help."""

    code: ClassVar[str] = "pressure"
    exit_code: ClassVar[int] = 4

    @property
    def hint(self) -> str | None:
        """More pages, or fewer branches."""
        return "raise --pool-pages or --pool-memory, or lower --breadth, --beam or --max-tokens"


@dataclass(eq=False)
class OutOfPages(PressureError):
    """The pool was asked for more pages than are free. A plan never does this."""

    code: ClassVar[str] = "out_of_pages"
    need_pages: int
    free_pages: int
    total_pages: int

    @property
    def message(self) -> str:
        """Give need, free and total."""
        return f"{self.need_pages} pages needed, {self.free_pages} free of {self.total_pages}"


@dataclass(eq=False)
class NotEnoughMemory(PressureError):
    """The machine has not the memory that was asked for; said before any of it is touched."""

    code: ClassVar[str] = "not_enough_memory"
    what: str
    need_bytes: int
    available_bytes: int

    @property
    def message(self) -> str:
        """Give both numbers."""
        need, available = self.need_bytes / 2**30, self.available_bytes / 2**30
        return f"{self.what} needs {need:.2f} GiB, but only {available:.2f} GiB may be used"

    @property
    def hint(self) -> str | None:
        """A smaller pool or model."""
        return "lower --pool-memory or --pool-pages, close other programs, or choose a smaller model (pie-mlx models)"


@dataclass(eq=False)
class Impossible(PressureError):
    """The ask exceeds what the pool could ever give; refused at once."""

    code: ClassVar[str] = "impossible"
    need_pages: int
    total_pages: int
    pinned_pages: int = 0

    @property
    def message(self) -> str:
        """Give need, total and what is pinned."""
        pinned = f", {self.pinned_pages} of them pinned" if self.pinned_pages else ""
        return f"the request needs {self.need_pages} pages, but the pool has {self.total_pages} in all{pinned}"


@dataclass(eq=False)
class Hog(PressureError):
    """One context holds most of the pool and asks for more than could ever be free."""

    code: ClassVar[str] = "hog"
    need_pages: int
    held_pages: int
    total_pages: int

    @property
    def message(self) -> str:
        """Give what it holds, what it asks and the total."""
        return (
            f"the context holds {self.held_pages} of {self.total_pages} pages and asks for {self.need_pages} more, "
            "which can never be free"
        )


@dataclass(eq=False)
class Starved(PressureError):
    """No progress is possible: says who waited, for what, and who holds it."""

    code: ClassVar[str] = "starved"
    need_pages: int
    free_pages: int
    total_pages: int
    cause: str
    waiter: str = ""
    holders: tuple[Holder, ...] = ()
    tried: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """Name waiter, need, free, total, cause and the largest holder."""
        who = f"{self.waiter} " if self.waiter else ""
        text = (
            f"{who}waited for {self.need_pages} pages with {self.free_pages} free of {self.total_pages}: {self.cause}"
        )
        return f"{text}; {self.holders[0]}" if self.holders else text


@dataclass(eq=False)
class Deadlock(PressureError):
    """Requests wait for each other in a cycle."""

    code: ClassVar[str] = "deadlock"
    cycle: tuple[str, ...]
    free_pages: int
    total_pages: int

    @property
    def message(self) -> str:
        """Draw the cycle."""
        cycle = " → ".join(self.cycle)
        return f"requests wait for each other ({cycle}), {self.free_pages} of {self.total_pages} pages free"


@dataclass(eq=False)
class Leak(PressureError):
    """A page is held that no live owner views: a fault of ours."""

    code: ClassVar[str] = "leak"
    pages: tuple[int, ...]
    total_pages: int

    @property
    def message(self) -> str:
        """Count the leaked pages."""
        return f"{len(self.pages)} of {self.total_pages} pages are held, but nobody views them"

    @property
    def hint(self) -> str | None:
        """Nothing the user did."""
        return "this is a fault in pie-mlx: please report it with the watchdog's report"


@dataclass(eq=False)
class Evicted(PressureError):
    """The context's pages were taken back and could not be restored."""

    code: ClassVar[str] = "evicted"
    context: str
    num_tokens: int
    reason: str

    @property
    def message(self) -> str:
        """Name context, length and reason."""
        return f"context {self.context} ({self.num_tokens} tokens) was evicted and not restored: {self.reason}"
