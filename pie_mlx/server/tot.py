"""``POST /v1/tot``: a search as server-sent events, and the verbs by which it is steered while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Self, cast

from pie_mlx.errors import Fact, InvalidParameter, PieError
from pie_mlx.search.node import ROOT, NodeId
from pie_mlx.search.params import Json, SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.tasks.registry import make_task
from pie_mlx.search.trace_events import Event, Finished, NodeStarted
from pie_mlx.search.tree import parse_node_id
from pie_mlx.server.answers import turn
from pie_mlx.server.bodies import SearchBody, SteeringBody, read
from pie_mlx.server.bridge import Inbox
from pie_mlx.server.errors import (
    BadRequestError,
    DeadlineError,
    InternalError,
    NotFoundError,
    SlowReaderError,
    body_of,
)
from pie_mlx.server.exchange import Exchange
from pie_mlx.server.logs import LOG, log_text
from pie_mlx.server.state import ServerState

_WIDTHS = ("breadth", "beam", "depth", "rollouts")

_Item = Event | SearchResult | PieError


async def search(state: ServerState, exchange: Exchange) -> None:
    """Run a search: its events as a stream whose last one is ``finish``, or its result.

    Raises:
        PieError: the body, the task, a limit or the gate refused it; without a stream, the run's own error.
    """
    body = read(SearchBody, exchange.body)
    state.check_model(body.model)
    limit_s = state.deadline_s(body.deadline_s)
    params = _params(state, body)
    task = await asyncio.to_thread(make_task, body.task, body.question, seed=params.seed, split=body.split)
    log_text(exchange, "question", task.question)
    timer = asyncio.get_running_loop().call_later(limit_s, exchange.abort, DeadlineError(limit_s))
    try:
        async with (
            turn(state.search_gate, exchange, body.user, streams=body.stream),
            _Running(state, task, params, deltas=body.stream and body.deltas) as running,
        ):
            exchange.notes["run"] = running.run.name
            if body.stream:
                await running.stream(exchange)
            else:
                await exchange.answer({**await running.result(), "run": running.run.name})
    finally:
        timer.cancel()


def _params(state: ServerState, body: SearchBody) -> SearchParams:
    """Return the search's parameters, inside the server's limits.

    Raises:
        InvalidParameter: one is unknown, outside its range, or over a limit.
    """
    settings = state.settings
    params = SearchParams.from_json(cast("dict[str, Json]", dict(body.params)))
    for name in _WIDTHS:
        if (getattr(params, name) or 0) > settings.max_search_width:
            raise InvalidParameter(name, getattr(params, name), f"at most {settings.max_search_width} here")
    context = state.engine.facts.context_tokens
    for name in ("max_tokens", "answer_tokens", "reasoning_tokens"):
        if getattr(params, name) > context:
            raise InvalidParameter(name, getattr(params, name), f"at most {context}, the model's context")
    given = params.to_json()
    budget = min(params.budget_nodes or settings.max_search_nodes, settings.max_search_nodes)
    return SearchParams.from_json({**given, "budget_nodes": budget})


class _Running:
    """A run on its threads, its events in an inbox; leaving it cancels the run and waits until its pages are free."""

    def __init__(self, state: ServerState, task: Task[object], params: SearchParams, *, deltas: bool) -> None:
        self._state = state
        self._inbox: Inbox[_Item] = Inbox()
        self._unread_limit = False
        self.run = Run(state.engine, task, params, listen=self._hear, name=f"tot-{secrets.token_hex(6)}", deltas=deltas)
        self._over: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._state.runs[self.run.name] = self.run
        loop = asyncio.get_running_loop()
        self._over = loop.run_in_executor(self._state.search_threads, self._work)
        return self

    async def __aexit__(self, *_ended: object) -> None:
        assert self._over is not None, "only what was entered is left"
        self.run.cancel("client")
        try:
            # The place is held until the run has given everything back, also where this task is cancelled meanwhile.
            await asyncio.shield(self._over)
        except asyncio.CancelledError:
            await self._over
            raise
        finally:
            self._forget()

    def _forget(self) -> None:
        """Take the run out of those that can be steered; idempotent."""
        self._state.runs.pop(self.run.name, None)

    def _work(self) -> None:
        """Run the search to its end; on a thread of the pool."""
        try:
            self._inbox.put(self.run.result())
        except PieError as error:
            self._inbox.put(error)
        except BaseException:  # noqa: BLE001  the thread's outer edge: the client gets a typed error, the log the rest
            LOG.exception("a search ended with a fault")
            self._inbox.put(InternalError())

    def _hear(self, event: Event) -> None:
        """Take an event from the run's thread; a reader that is too slow ends its run."""
        if len(self._inbox) < self._state.settings.max_unread_events or isinstance(event, Finished):
            self._inbox.put(event)
        elif not self._unread_limit:
            self._unread_limit = True
            self.run.cancel("slow reader")

    async def result(self) -> dict[str, Fact]:
        """Return the run's result.

        Raises:
            PieError: the run starved or failed.
        """
        while True:
            for item in await self._inbox.take():
                if isinstance(item, PieError):
                    raise item
                if isinstance(item, SearchResult):
                    if item.error is not None:
                        raise item.error
                    return item.to_json()

    async def stream(self, exchange: Exchange) -> None:
        """Send the header and the events; ``finish`` is held until the run has given its pages back.

        What fails before its first thought has no stream, so that the refusal has its own status.

        Raises:
            PieError: the run was refused, or broke down without a ``finish``.
        """
        items = await self._opening()
        await exchange.begin_stream()
        await exchange.event(self.run.header().to_json(), name="header")
        finish: Finished | None = None
        while True:
            for item in items:
                if isinstance(item, Finished):
                    finish = item
                elif isinstance(item, PieError):
                    raise item
                elif isinstance(item, SearchResult):
                    await self._finish(exchange, finish, item.error)
                    return
                else:
                    await exchange.event(item.to_json(), name=item.event)
            items = await self._next(exchange)

    async def _opening(self) -> list[_Item]:
        """Return what is told until the first thought begins, or until it takes longer than a stream may be silent.

        Raises:
            PieError: the run has ended with it.
        """
        opening: list[_Item] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._state.settings.heartbeat_s):
                while not any(_is_work(item) for item in opening):
                    opening += await self._inbox.take()
        error = next((item.error for item in opening if isinstance(item, SearchResult)), None)
        if error is not None and not any(isinstance(item, NodeStarted) and item.node != ROOT for item in opening):
            raise error
        return opening

    async def _next(self, exchange: Exchange) -> list[_Item]:
        """Return the next events; send a comment now and then while there are none."""
        while True:
            try:
                async with asyncio.timeout(self._state.settings.heartbeat_s):
                    return await self._inbox.take()
            except TimeoutError:
                await exchange.comment()

    async def _finish(self, exchange: Exchange, finish: Finished | None, error: PieError | None) -> None:
        """Send the terminal event, with the typed error of a run that failed, and end the stream."""
        if self._unread_limit:
            raise SlowReaderError(self._state.settings.max_unread_events)
        self._forget()
        assert finish is not None, "a run that has a result has told its finish"
        failure = {} if error is None else {"failure": body_of(error)["error"]}
        await exchange.event({**finish.to_json(), **failure}, name=finish.event)
        await exchange.end_stream(b"")


def _is_work(item: _Item) -> bool:
    """Whether an item says that a thought was begun, or that there will be none."""
    return isinstance(item, SearchResult | PieError) or (isinstance(item, NodeStarted) and item.node != ROOT)


async def steer(state: ServerState, exchange: Exchange) -> None:
    """Steer a run: the verb is checked at once, and carried out by the run between two of its events.

    Raises:
        NotFoundError: there is no such run or verb.
        PieError: the verb does not fit the tree as it is.
    """
    path = exchange.request.path_params
    run = state.runs.get(path["run"])
    if run is None:
        raise NotFoundError(f"run {path['run'][:60]!r}: it is over, or it never was")
    verb = _VERBS.get(path["verb"])
    if verb is None:
        raise NotFoundError(f"verb {path['verb'][:60]!r}, only {', '.join(_VERBS)}")
    body = read(SteeringBody, exchange.body)
    await asyncio.to_thread(verb, run, body)
    await exchange.answer({"run": run.name, "verb": path["verb"], "accepted": True})


def _node(body: SteeringBody) -> NodeId:
    """Return the node that a verb is about."""
    if body.node is None:
        raise BadRequestError("this verb needs a node", "node")
    return NodeId(parse_node_id(body.node))


def _text(body: SteeringBody) -> str:
    """Return the text that a verb writes."""
    if body.text is None:
        raise BadRequestError("this verb needs a text", "text")
    return body.text


def _expand(run: Run, body: SteeringBody) -> None:
    """Write more children, within the width that any search may have."""
    if (body.breadth or 0) > 64:
        raise InvalidParameter("breadth", body.breadth, "at most 64 here")
    run.expand(_node(body), body.breadth, body.seed)


_VERBS: dict[str, Callable[[Run, SteeringBody], None]] = {
    "pause": lambda run, _body: run.pause(),
    "resume": lambda run, _body: run.resume(),
    "step": lambda run, _body: run.step(),
    "cancel": lambda run, _body: run.cancel("client"),
    "prune": lambda run, body: run.prune(_node(body)),
    "expand": _expand,
    "edit": lambda run, body: run.edit(_node(body), _text(body)),
    "insert": lambda run, body: run.insert(_node(body), _text(body)),
    "lock": lambda run, body: run.lock(_node(body), locked=body.locked),
    "accept": lambda run, body: run.accept(_node(body)),
}
