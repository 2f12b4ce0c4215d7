"""The daemon's own errors, and how every typed error becomes a status and a body.

A body has OpenAI's shape, ``{"error": {message, type, code, param, detail, hint}}``. ``code`` and ``detail`` are
those of :meth:`pie_mlx.errors.PieError.to_json`; nothing of it names a file or shows a traceback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from pie_mlx.errors import (
    Cancelled,
    ContextTooLong,
    DeviceError,
    EmptyPrompt,
    Fact,
    Hog,
    Impossible,
    InvalidParameter,
    NotEnoughMemory,
    PieError,
    PressureError,
    TemplateError,
    UsageError,
)
from pie_mlx.search.errors import TreeError

RETRY_AFTER_S = 2
"""What a client is asked to wait after a 429 or a 503."""
CLIENT_CLOSED = 499
"""Status in the log of an exchange whose client has gone; nobody receives it."""


@dataclass(eq=False)
class ServerError(PieError):
    """Root of what the daemon itself refuses."""

    status: ClassVar[int] = 500


@dataclass(eq=False)
class BadRequestError(ServerError):
    """The body is not JSON, or not what the endpoint takes."""

    code: ClassVar[str] = "invalid_request"
    status: ClassVar[int] = 400
    reason: str
    param: str | None = None

    @property
    def message(self) -> str:
        """Name the field and what is wrong with it."""
        return self.reason if self.param is None else f"{self.param}: {self.reason}"


@dataclass(eq=False)
class NotSupportedError(BadRequestError):
    """The protocol has it, this server does not."""

    code: ClassVar[str] = "not_supported"


@dataclass(eq=False)
class UnauthorizedError(ServerError):
    """The key is missing or wrong."""

    code: ClassVar[str] = "invalid_api_key"
    status: ClassVar[int] = 401

    @property
    def message(self) -> str:
        """Say what is expected."""
        return "the key is missing or wrong: send the header 'Authorization: Bearer KEY'"


@dataclass(eq=False)
class HostRefusedError(ServerError):
    """The Host header names another machine: a web page may be reaching through the browser."""

    code: ClassVar[str] = "host_not_allowed"
    status: ClassVar[int] = 403

    @property
    def message(self) -> str:
        """Say which names are served."""
        return "the Host header does not name this machine"


@dataclass(eq=False)
class NotFoundError(ServerError):
    """No such path, model or run."""

    code: ClassVar[str] = "not_found"
    status: ClassVar[int] = 404
    what: str

    @property
    def message(self) -> str:
        """Name what was looked for."""
        return f"there is no {self.what}"


class NoSuchModelError(NotFoundError):
    """The request names a model that is not served here."""

    code: ClassVar[str] = "model_not_found"


@dataclass(eq=False)
class WrongMethodError(ServerError):
    """The path is there, but not for this method."""

    code: ClassVar[str] = "method_not_allowed"
    status: ClassVar[int] = 405
    allowed: tuple[str, ...]

    @property
    def message(self) -> str:
        """Name the methods that work."""
        return f"this path takes {' and '.join(self.allowed)}"


@dataclass(eq=False)
class BodyTimeoutError(ServerError):
    """The body did not arrive in time."""

    code: ClassVar[str] = "body_timeout"
    status: ClassVar[int] = 408
    limit_s: float

    @property
    def message(self) -> str:
        """Give the limit."""
        return f"the body did not arrive within {self.limit_s:g} s"


@dataclass(eq=False)
class TooLargeError(ServerError):
    """A limit on size or number was passed."""

    code: ClassVar[str] = "too_large"
    status: ClassVar[int] = 413
    what: str
    limit: int

    @property
    def message(self) -> str:
        """Give the limit."""
        return f"the request has more than {self.limit} {self.what}"


class HeadersTooLargeError(TooLargeError):
    """There are too many headers, or they are too long."""

    code: ClassVar[str] = "headers_too_large"
    status: ClassVar[int] = 431


@dataclass(eq=False)
class WrongMediaTypeError(ServerError):
    """The body is not announced as JSON; forms and plain text are what web pages may send unasked."""

    code: ClassVar[str] = "unsupported_media_type"
    status: ClassVar[int] = 415

    @property
    def message(self) -> str:
        """Say what is expected."""
        return "send JSON with the header 'Content-Type: application/json', uncompressed"


@dataclass(eq=False)
class QueueFullError(ServerError):
    """More is waiting already than may wait."""

    code: ClassVar[str] = "queue_full"
    status: ClassVar[int] = 429
    waiting: int
    limit: int

    @property
    def message(self) -> str:
        """Give both numbers."""
        return f"{self.waiting} requests wait already, and no more than {self.limit} may"


@dataclass(eq=False)
class DrainingError(ServerError):
    """The server is ending: what runs may finish, nothing new begins."""

    code: ClassVar[str] = "draining"
    status: ClassVar[int] = 503

    @property
    def message(self) -> str:
        """Say so."""
        return "the server is shutting down"


@dataclass(eq=False)
class SwitchingError(ServerError):
    """The server is changing to another model: what runs may finish, nothing begins until it is there."""

    code: ClassVar[str] = "switching"
    status: ClassVar[int] = 503
    model: str

    @property
    def message(self) -> str:
        """Name the model that comes."""
        return f"the server is changing to model {self.model!r}"


@dataclass(eq=False)
class ModelNotLoadedError(ServerError):
    """Another model was asked for, and cannot be loaded; why stands in the log, as it names files."""

    code: ClassVar[str] = "model_not_loaded"
    status: ClassVar[int] = 409
    model: str
    cause: str
    """Code of the error that the log has."""

    @property
    def message(self) -> str:
        """Name the model."""
        return f"model {self.model!r} cannot be loaded ({self.cause}); the server's log says why"


@dataclass(eq=False)
class DeadlineError(ServerError):
    """The request took longer than it may."""

    code: ClassVar[str] = "deadline"
    status: ClassVar[int] = 504
    limit_s: float

    @property
    def message(self) -> str:
        """Give the limit."""
        return f"the request took longer than {self.limit_s:g} s"


@dataclass(eq=False)
class SlowReaderError(ServerError):
    """A client let so many events wait that the run was ended."""

    code: ClassVar[str] = "slow_reader"
    status: ClassVar[int] = 503
    limit: int

    @property
    def message(self) -> str:
        """Give the limit."""
        return f"the client read too slowly: {self.limit} events were waiting for it"


@dataclass(eq=False)
class InternalError(ServerError):
    """A fault of ours; the log has it, the answer does not."""

    code: ClassVar[str] = "internal"

    @property
    def message(self) -> str:
        """Say that it is our fault."""
        return "the server met a fault of its own; its log says more"


_CLIENT_FAULTS = (
    InvalidParameter,
    UsageError,
    EmptyPrompt,
    ContextTooLong,
    Impossible,
    Hog,
    TemplateError,
    TreeError,
)
_TRY_LATER = (PressureError, DeviceError, Cancelled)


def status_of(error: PieError) -> int:
    """Return the status: 400 what can never work, 503 what may work later, 500 what is our fault."""
    if isinstance(error, ServerError):
        return error.status
    if isinstance(error, NotEnoughMemory):
        # It comes of asking for another model only: what is served stays as it is.
        return 409
    if isinstance(error, _CLIENT_FAULTS):
        return 400
    return 503 if isinstance(error, _TRY_LATER) else 500


def headers_of(error: PieError) -> dict[str, str]:
    """Return the headers that go with an error."""
    if isinstance(error, WrongMethodError):
        return {"Allow": ", ".join(error.allowed)}
    if isinstance(error, UnauthorizedError):
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": str(RETRY_AFTER_S)} if status_of(error) in (429, 503) else {}


def body_of(error: PieError) -> dict[str, Fact]:
    """Return the body that tells an error."""
    facts = error.to_json()
    param = error.name if isinstance(error, InvalidParameter) else getattr(error, "param", None)
    return {
        "error": {
            "message": facts["message"],
            "type": _type_of(status_of(error)),
            "code": facts["code"],
            "param": param if isinstance(param, str) else None,
            "hint": facts["hint"],
            "detail": _sayable(facts["detail"]),
        }
    }


def _type_of(status: int) -> str:
    """Return OpenAI's word for a status."""
    words = {401: "authentication_error", 429: "rate_limit_error", 503: "overloaded_error"}
    return words.get(status, "invalid_request_error" if status < 500 else "server_error")


def _sayable(fact: Fact) -> Fact:
    """Return a fact that JSON can say and that is not longer than an answer should be."""
    if isinstance(fact, float) and not math.isfinite(fact):
        return str(fact)
    if isinstance(fact, str):
        return fact[:1000]
    if isinstance(fact, list):
        return [_sayable(item) for item in fact[:100]]
    if isinstance(fact, dict):
        return {key: _sayable(item) for key, item in fact.items()}
    return fact
