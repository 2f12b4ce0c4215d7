"""The application: routes, what every request must pass before it reaches one, and the document of them all."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pie_mlx.server.chat import chat_completions
from pie_mlx.server.completions import completions
from pie_mlx.server.errors import (
    HeadersTooLargeError,
    HostRefusedError,
    NotFoundError,
    QueueFullError,
    UnauthorizedError,
    WrongMethodError,
)
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.looking import health, load, metrics, model, models, pages
from pie_mlx.server.openapi import document
from pie_mlx.server.settings import is_loopback
from pie_mlx.server.state import ServerState
from pie_mlx.server.tot import search, steer

Endpoint = Callable[[ServerState, Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Path:
    """One path, its method and what answers it; ``makes_work`` is what a draining server refuses."""

    path: str
    method: str
    endpoint: Endpoint
    makes_work: bool = False


async def openapi(_state: ServerState, exchange: Exchange) -> None:
    """Tell the OpenAPI document."""
    await exchange.answer(document())


PATHS = (
    Path("/v1/models", "GET", models),
    Path("/v1/models/{model:path}/load", "POST", load, makes_work=True),
    Path("/v1/models/{model:path}", "GET", model),
    Path("/v1/chat/completions", "POST", chat_completions, makes_work=True),
    Path("/v1/completions", "POST", completions, makes_work=True),
    Path("/v1/tot", "POST", search, makes_work=True),
    Path("/v1/tot/{run}/{verb}", "POST", steer),
    Path("/v1/pages", "GET", pages),
    Path("/metrics", "GET", metrics),
    Path("/healthz", "GET", health),
    Path("/openapi.json", "GET", openapi),
)


Current = Callable[[], ServerState]
"""Returns the state of the model that is served now."""


def make_app(current: Current) -> ASGIApp:
    """Return the application over whatever is served at the moment of a request."""
    routes = [Route(path.path, endpoint=_Served(current, path)) for path in PATHS]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.router.default = _Nowhere(current)
    return app


class _Served:
    """One path as an ASGI application: guards first, then the endpoint."""

    def __init__(self, current: Current, path: Path) -> None:
        self._current = current
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, path = self._current(), self._path
        exchange = Exchange(scope, receive, send, state.settings)

        async def answer(exchange: Exchange) -> None:
            await path.endpoint(state, exchange)

        state.exchanges.add(exchange)
        try:
            await exchange.run(answer, guard=lambda exchange: self._guard(state, exchange))
        finally:
            state.exchanges.discard(exchange)
            state.metrics.count_response(path.path, exchange.status or 0)

    def _guard(self, state: ServerState, exchange: Exchange) -> None:
        """Refuse what must not be answered, before a byte of its body is read."""
        _guard(state, exchange)
        if exchange.request.method != self._path.method:
            raise WrongMethodError((self._path.method,))
        if self._path.makes_work and state.refusal is not None:
            raise state.refusal


class _Nowhere:
    """Answers for every path that is not there."""

    def __init__(self, current: Current) -> None:
        self._current = current

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        state = self._current()
        exchange = Exchange(scope, receive, send, state.settings)
        await exchange.run(_nothing, guard=lambda exchange: self._refuse(state, exchange))
        state.metrics.count_response("other", exchange.status or 0)

    def _refuse(self, state: ServerState, exchange: Exchange) -> None:
        """Refuse before the body is read, a stranger first."""
        _guard(state, exchange)
        raise NotFoundError("such path")


async def _nothing(_exchange: Exchange) -> None:
    """Stand for the endpoint of a path that is not there: the guard has refused before."""
    raise NotFoundError("such path")


def _guard(state: ServerState, exchange: Exchange) -> None:
    """Refuse too many exchanges, oversized headers, foreign hosts and strangers, in this order.

    Raises:
        QueueFullError, HeadersTooLargeError, HostRefusedError, UnauthorizedError: as their names say.
    """
    settings, request = state.settings, exchange.request
    is_probe = request.url.path == "/healthz"
    if len(state.exchanges) > settings.max_connections and not is_probe:
        raise QueueFullError(len(state.exchanges), settings.max_connections)
    raw = request.scope["headers"]
    if len(raw) > settings.max_headers:
        raise HeadersTooLargeError("headers", settings.max_headers)
    size = sum(len(name) + len(value) for name, value in raw) + len(request.scope.get("query_string", b""))
    if size > settings.max_header_bytes:
        raise HeadersTooLargeError("bytes in its headers", settings.max_header_bytes)
    if is_loopback(settings.host) and not _names_this_machine(request.headers.get("host", "localhost")):
        raise HostRefusedError
    if (
        settings.api_key is not None
        and not is_probe
        and not _has_key(request.headers.get("authorization"), settings.api_key)
    ):
        raise UnauthorizedError


def _names_this_machine(host: str) -> bool:
    """Whether a Host header names the machine itself: a page under another name may have been rebound to it."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)


def _has_key(header: str | None, key: str) -> bool:
    """Whether the bearer is the key; the time this takes does not depend on where they differ."""
    scheme, _, given = (header or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), key.encode())
    return scheme.casefold() == "bearer" and same
