"""One tree of errors: every failure a user can meet, with its facts as fields.

The type of an error survives from the device to the exit code: nothing between the two
may replace one of these by a bare string, an empty result or another type. Each class
names a stable ``code`` (JSON and HTTP), an ``exit_code`` (command line) and, where one
exists, a ``hint``: the command that helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, TypeAlias

Fact: TypeAlias = "str | int | float | bool | list[Fact] | dict[str, Fact] | None"
"""What an error's field may hold once it is JSON."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds pages while somebody waits: one line of a starvation report."""

    name: str
    pages: int
    shared_pages: int
    idle_s: float

    def __str__(self) -> str:
        """Render the holder as the report shows it."""
        return f"{self.name} holds {self.pages} pages ({self.shared_pages} shared), idle {self.idle_s:.1f} s"


@dataclass(eq=False)
class PieError(Exception):
    """Root of every error that pie-mlx raises on purpose."""

    code: ClassVar[str] = "failure"
    exit_code: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Give ``Exception`` its message, so that tracebacks read well."""
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message: what happened, with its numbers."""
        return self.message

    @property
    def message(self) -> str:
        """What happened and why, in one sentence with its numbers."""
        return self.code.replace("_", " ")

    @property
    def hint(self) -> str | None:
        """What to do about it, as a command where one exists."""
        return None

    def to_json(self) -> dict[str, Fact]:
        """Return ``{code, message, hint, detail}``; ``detail`` holds every field."""
        detail: dict[str, Fact] = {f.name: _as_fact(getattr(self, f.name)) for f in fields(self)}
        return {"code": self.code, "message": self.message, "hint": self.hint, "detail": detail}


def _as_fact(value: object) -> Fact:
    """Turn a field's value into plain JSON without losing a number."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Holder):
        return {f.name: _as_fact(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_fact(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_fact(item) for item in value]
    return str(value)


# --- usage and configuration: exit code 2 ------------------------------------------------


@dataclass(eq=False)
class UsageError(PieError):
    """The user asked for something that has no meaning."""

    code: ClassVar[str] = "usage"
    exit_code: ClassVar[int] = 2
    reason: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """The reason, as given."""
        return self.reason

    @property
    def hint(self) -> str | None:
        """The suggestion, as given."""
        return self.suggestion


@dataclass(eq=False)
class InvalidParameter(PieError):
    """A parameter is outside its range; found before any work is done."""

    code: ClassVar[str] = "invalid_parameter"
    exit_code: ClassVar[int] = 2
    name: str
    value: object
    allowed: str

    @property
    def message(self) -> str:
        """Name the parameter, its value and its range."""
        return f"{self.name} is {self.value!r}, but it must be {self.allowed}"


@dataclass(eq=False)
class ConfigError(PieError):
    """A configuration file or variable is wrong; names file, line and key."""

    code: ClassVar[str] = "config"
    exit_code: ClassVar[int] = 2
    where: str
    key: str | None
    reason: str
    line: int | None = None
    nearest: str | None = None

    @property
    def message(self) -> str:
        """Name file, line, key and what is wrong with it."""
        place = self.where if self.line is None else f"{self.where}:{self.line}"
        return f"{place}: {self.reason}" if self.key is None else f"{place}: {self.key}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """Offer the nearest known key."""
        return None if self.nearest is None else f"did you mean {self.nearest!r}?"


# --- models: exit code 3 -----------------------------------------------------------------


@dataclass(eq=False)
class ModelError(PieError):
    """A model is missing or cannot be loaded."""

    code: ClassVar[str] = "model"
    exit_code: ClassVar[int] = 3
    model: str
    reason: str
    suggestion: str | None = None

    @property
    def message(self) -> str:
        """Name the model and what is wrong."""
        return f"{self.model}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """The suggestion, as given."""
        return self.suggestion


class ModelNotFound(ModelError):
    """No registry entry, folder or file has this name, or it is not pulled yet."""

    code: ClassVar[str] = "model_not_found"


class ModelCorrupt(ModelError):
    """A file of the model is truncated, malformed or contradicts another."""

    code: ClassVar[str] = "model_corrupt"


class ChecksumMismatch(ModelError):
    """A downloaded file is not the one that the registry pins."""

    code: ClassVar[str] = "checksum_mismatch"


class TokenizerMissing(ModelError):
    """The model has no tokenizer that can be read; names where it was looked for."""

    code: ClassVar[str] = "tokenizer_missing"


class UnsupportedModel(ModelError):
    """The architecture, quantization or tokenizer kind is not one we run correctly."""

    code: ClassVar[str] = "unsupported_model"


class TemplateError(ModelError):
    """The chat template is missing, or refuses these messages."""

    code: ClassVar[str] = "chat_template"


class DownloadFailed(ModelError):
    """The source answered with an error."""

    code: ClassVar[str] = "download_failed"


class NetworkUnavailable(ModelError):
    """The source could not be reached, or the network is switched off."""

    code: ClassVar[str] = "network_unavailable"


class DiskFull(ModelError):
    """There is not enough space for the download or the conversion."""

    code: ClassVar[str] = "disk_full"


# --- one request: exit codes 1, 2 and 130 ------------------------------------------------


@dataclass(eq=False)
class EmptyPrompt(PieError):
    """A request on a context that has no token: there is nothing to continue."""

    code: ClassVar[str] = "empty_prompt"
    exit_code: ClassVar[int] = 2

    @property
    def message(self) -> str:
        """Say that the prompt is empty."""
        return "the prompt is empty: a model needs at least one token to continue"


@dataclass(eq=False)
class ContextTooLong(PieError):
    """The sequence does not fit the model's context; not a memory problem."""

    code: ClassVar[str] = "context_too_long"
    exit_code: ClassVar[int] = 2
    num_tokens: int
    limit_tokens: int

    @property
    def message(self) -> str:
        """Give both numbers."""
        return f"the prompt has {self.num_tokens} tokens, but the model's context ends at {self.limit_tokens}"

    @property
    def hint(self) -> str | None:
        """Shorten it: the pool's size does not matter here."""
        return "shorten the prompt, or choose a model with a longer context (pie-mlx models)"


@dataclass(eq=False)
class Cancelled(PieError):
    """The user, or the owner of the context, ended the request."""

    code: ClassVar[str] = "cancelled"
    exit_code: ClassVar[int] = 130
    by: str = "user"

    @property
    def message(self) -> str:
        """Say who cancelled."""
        return f"cancelled by {self.by}"


@dataclass(eq=False)
class ContextClosed(PieError):
    """A closed context was used."""

    code: ClassVar[str] = "context_closed"
    context: str

    @property
    def message(self) -> str:
        """Name the context."""
        return f"context {self.context} is closed"


@dataclass(eq=False)
class ContextBusy(PieError):
    """A context runs one request at a time; fork it to run two."""

    code: ClassVar[str] = "context_busy"
    context: str

    @property
    def message(self) -> str:
        """Name the context."""
        return f"context {self.context} already runs a request"

    @property
    def hint(self) -> str | None:
        """Forking is free."""
        return "fork the context: a fork copies nothing"


@dataclass(eq=False)
class InvalidLogits(PieError):
    """The model returned NaN or infinite logits; no token can be drawn from them."""

    code: ClassVar[str] = "invalid_logits"
    position: int

    @property
    def message(self) -> str:
        """Give the position."""
        return f"the model returned NaN logits at position {self.position}"

    @property
    def hint(self) -> str | None:
        """Weights or dtype are to blame."""
        return "check the weights (pie-mlx info MODEL) and the device (pie-mlx doctor)"


# --- pressure: exit code 4 ---------------------------------------------------------------


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


# --- the device and the engine: exit code 4 ----------------------------------------------


@dataclass(eq=False)
class DeviceError(PieError):
    """The device, or the thread that owns it, failed."""

    code: ClassVar[str] = "device"
    exit_code: ClassVar[int] = 4


@dataclass(eq=False)
class DeviceFailed(DeviceError):
    """A device call raised, hung, or gave no row back."""

    code: ClassVar[str] = "device_failed"
    reason: str
    step: int | None = None

    @property
    def message(self) -> str:
        """Give the reason and the step."""
        at = "" if self.step is None else f" at step {self.step}"
        return f"the device failed{at}: {self.reason}"

    @property
    def hint(self) -> str | None:
        """Look at the machine; a watchdog kill wants a smaller chunk."""
        if "Impacting Interactivity" in self.reason:
            return "the system ended a long GPU command: lower --prefill-chunk (512 or less)"
        return "run pie-mlx doctor"


@dataclass(eq=False)
class StepTimeout(DeviceError):
    """A step took longer than its limit."""

    code: ClassVar[str] = "step_timeout"
    waited_s: float
    limit_s: float

    @property
    def message(self) -> str:
        """Give both times."""
        return f"a step has run for {self.waited_s:.1f} s, over its limit of {self.limit_s:.1f} s"


@dataclass(eq=False)
class Stalled(DeviceError):
    """Work was there, the device answered, and yet nothing moved."""

    code: ClassVar[str] = "stalled"
    waited_s: float
    cause: str

    @property
    def message(self) -> str:
        """Give the time and the cause."""
        return f"no progress for {self.waited_s:.1f} s: {self.cause}"


@dataclass(eq=False)
class EngineDead(DeviceError):
    """The engine has ended; no request can run on it any more."""

    code: ClassVar[str] = "engine_dead"
    reason: str

    @property
    def message(self) -> str:
        """Give the reason of the end."""
        return f"the engine has ended: {self.reason}"


# --- snapshots ---------------------------------------------------------------------------


@dataclass(eq=False)
class SnapshotError(PieError):
    """A saved context is missing, damaged, or was made for something else."""

    code: ClassVar[str] = "snapshot"
    exit_code: ClassVar[int] = 1
    name: str
    reason: str
    detail_facts: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """Name the snapshot and what is wrong."""
        return f"snapshot {self.name!r}: {self.reason}"


class SnapshotMissing(SnapshotError):
    """No snapshot has this name."""

    code: ClassVar[str] = "snapshot_missing"


class SnapshotCorrupt(SnapshotError):
    """A file of the snapshot is truncated or its checksum is wrong."""

    code: ClassVar[str] = "snapshot_corrupt"


class SnapshotMismatch(SnapshotError):
    """The snapshot belongs to another model, dtype or page layout."""

    code: ClassVar[str] = "snapshot_mismatch"


class SnapshotVersion(SnapshotError):
    """The snapshot was written in a format that this version cannot read."""

    code: ClassVar[str] = "snapshot_version"
