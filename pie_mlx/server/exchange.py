"""One HTTP exchange: its body in, its answer or its stream out, and its end for whatever reason.

The work of an exchange is one task. It is cancelled when the client has gone, and aborted with a typed error when
its deadline passes or the server ends; cancelling it closes contexts and gives places back, as every resource is
held in a ``with``. What has begun as a stream ends as one: an error becomes the last event.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from pie_mlx.errors import PieError
from pie_mlx.server.bodies import parse_json
from pie_mlx.server.errors import (
    CLIENT_CLOSED,
    BodyTimeoutError,
    InternalError,
    TooLargeError,
    WrongMediaTypeError,
    body_of,
    headers_of,
    status_of,
)
from pie_mlx.server.logs import LOG, log_exchange
from pie_mlx.server.settings import ServerSettings

_LAST_WORD_S = 2.0
"""How long a stream's error event may take to leave, and what a refused client still sends is taken in."""

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request and the answer to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings) -> None:
        """Wrap what the HTTP server hands over."""
        self.request = Request(scope, receive)
        self.settings = settings
        self.began_s = time.monotonic()
        self.notes: dict[str, object] = {}
        """What the log says of it besides the rest."""
        self.status: int | None = None
        self._receive = receive
        self._send = send
        self._body: Any = None
        self._has_rest = self.request.method == "POST"
        self._is_stream = False
        self._work: asyncio.Task[None] | None = None
        self._aborted_by: PieError | None = None
        self._speaking = asyncio.Lock()

    @property
    def client(self) -> str:
        """The address of the peer."""
        return self.request.client.host if self.request.client is not None else "local"

    @property
    def body(self) -> Any:
        """The body's JSON, once it has been read."""
        return self._body

    def abort(self, error: PieError) -> None:
        """End the work with a typed error; an exchange that is over stays as it is."""
        if self._work is not None and not self._work.done() and self._aborted_by is None:
            self._aborted_by = error
            self._work.cancel()

    async def run(self, handler: Handler, *, guard: Callable[[Exchange], None]) -> None:
        """Pass ``guard``, read the body, let ``handler`` answer, and see that there is an answer whatever happens."""
        try:
            guard(self)
            if self.request.method == "POST":
                await self._read_body()
            await self._attend(handler)
        except ClientDisconnect:
            self.status = CLIENT_CLOSED
        except PieError as error:
            await self._fail(error)
        except Exception:  # noqa: BLE001  the outer edge of one exchange: the client gets a typed answer, the log the rest
            LOG.exception("a fault while answering %s %s", self.request.method, self.request.url.path)
            await self._fail(InternalError())
        finally:
            log_exchange(self)

    async def _attend(self, handler: Handler) -> None:
        """Run the handler until it is done, the client has gone, or the deadline has passed."""
        work = self._work = asyncio.ensure_future(_as_coroutine(handler(self)))
        gone = asyncio.ensure_future(self._until_gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not work.cancelled():
                work.result()
                return
        finally:
            gone.cancel()
            work.cancel()
            # Whatever ends the exchange, contexts are closed and places given back before it is over.
            await asyncio.wait({work, gone})
        if self._aborted_by is not None:
            raise self._aborted_by
        self.status = CLIENT_CLOSED

    async def _until_gone(self) -> None:
        """Wait until the client has closed the connection; the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    # --- in ----------------------------------------------------------------------------------

    async def _read_body(self) -> None:
        """Read and parse the body.

        Raises:
            WrongMediaTypeError, TooLargeError, BodyTimeoutError, BadRequestError: as their names say.
            ClientDisconnect: the client has gone.
        """
        limit = self.settings.max_body_bytes
        headers = self.request.headers
        if headers.get("content-encoding", "identity") != "identity":
            raise WrongMediaTypeError
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                raw = await self._collect(limit)
                self._has_rest = False
        except TimeoutError:
            raise BodyTimeoutError(self.settings.body_timeout_s) from None
        kind = headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != "application/json" and (raw or kind):
            raise WrongMediaTypeError
        self._body = parse_json(raw)

    async def _collect(self, limit: int) -> bytes:
        """Return the body's bytes; one that is too long is refused as soon as that is known."""
        chunks: list[bytes] = []
        size = 0
        async for chunk in self.request.stream():
            size += len(chunk)
            if size > limit:
                raise TooLargeError("bytes in its body", limit)
            chunks.append(chunk)
        return b"".join(chunks)

    # --- out ---------------------------------------------------------------------------------

    async def answer(self, body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with JSON."""
        await self.answer_raw(json_bytes(body), "application/json", status=status, headers=headers)

    async def answer_raw(
        self, body: bytes, kind: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with bytes of a media type."""
        await self._begin(status, {"content-type": kind, "content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        """Begin a stream of server-sent events; once."""
        if self._is_stream:
            return
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store"}
        await self._begin(200, {**headers, "x-accel-buffering": "no"})
        self._is_stream = True

    async def event(self, body: object, *, name: str | None = None) -> None:
        """Send one event."""
        head = b"" if name is None else b"event: " + name.encode() + b"\n"
        await self._write(head + b"data: " + json_bytes(body) + b"\n\n")

    async def comment(self) -> None:
        """Send a comment: clients skip it, and a connection that is dead shows it."""
        await self._write(b": waiting\n\n")

    @contextlib.asynccontextmanager
    async def patient(self, *, streams: bool) -> AsyncIterator[None]:
        """While inside, nothing else is told; a stream begins after a while, and shows that it lives by comments."""
        beat = asyncio.ensure_future(self._beat()) if streams else None
        try:
            yield
        finally:
            if beat is not None:
                beat.cancel()
                await asyncio.wait({beat})

    async def _beat(self) -> None:
        """Send a comment now and then."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            await self.begin_stream()
            await self.comment()

    async def end_stream(self, last: bytes = b"data: [DONE]\n\n") -> None:
        """Send the last bytes and end the stream."""
        await self._write(last, more=False)

    async def _write(self, data: bytes, *, more: bool = True) -> None:
        """Write a part of the stream; waits while the client does not read."""
        async with self._speaking:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.status = status
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        raw.append((b"x-content-type-options", b"nosniff"))
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _fail(self, error: PieError) -> None:
        """Tell an error: as the answer, or as the last event of a stream that has begun."""
        self.notes["error"] = error.code
        if self.status is None:
            answer = self._answer_and_linger if self._has_rest else self.answer
            await answer(body_of(error), status=status_of(error), headers=headers_of(error))
        elif self._is_stream:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORD_S):
                    await self.event(body_of(error), name="error")
                    await self.end_stream()

    async def _answer_and_linger(self, body: object, *, status: int, headers: Mapping[str, str]) -> None:
        """Answer before the body was read, take in the rest for a while, and close the connection.

        To close at once would reset a connection on which the client still sends, and may cost it the answer.
        """
        raw = json_bytes(body)
        kind = {"content-type": "application/json", "content-length": str(len(raw)), "connection": "close"}
        await self._begin(status, {**kind, **headers})
        await self._send({"type": "http.response.body", "body": raw, "more_body": True})
        # A client that waits to be told to go on will not send it.
        if self.request.headers.get("expect", "").casefold() != "100-continue":
            await self._discard_rest()
        await self._send({"type": "http.response.body", "body": b""})

    async def _discard_rest(self) -> None:
        """Take in what is left of the body, until its end, the client's, or that of our patience."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORD_S):
                while (await self._receive()).get("more_body", False):
                    pass


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    """Let a task run any awaitable."""
    await awaitable


def json_bytes(value: object) -> bytes:
    """Return JSON as ASCII bytes on one line; a lone surrogate is escaped like any other character."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
