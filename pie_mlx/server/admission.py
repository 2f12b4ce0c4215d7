"""Admission: who may use the engine next. Clients take turns, whatever the number of requests of each.

The engine serves first come, first served. In front of it stands a gate with a fixed number of places. While a
place is free, everybody enters. When none is, requests wait in one queue per client, and a place that comes free
goes to the next client in rotation. A full queue refuses; where one client fills it, its newest request gives way
to a client that has fewer waiting.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pie_mlx.errors import PieError
from pie_mlx.server.errors import QueueFullError

_Turn = asyncio.Future[None]


class Gate:
    """A number of places, and those who wait for one. Used from the event loop's thread only."""

    def __init__(self, num_places: int, max_waiting: int) -> None:
        """Open with every place free."""
        self._num_places = num_places
        self._max_waiting = max_waiting
        self._num_inside = 0
        self._queues: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._closed_by: PieError | None = None

    @property
    def num_inside(self) -> int:
        """Places that are taken."""
        return self._num_inside

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Wait for the client's turn, and hold a place while inside.

        Raises:
            QueueFullError: too many wait already.
            PieError: the gate was closed with it.
        """
        await self._enter(client)
        try:
            yield
        finally:
            self._leave()

    def close(self, error: PieError) -> None:
        """Let nobody in any more: who waits and who comes gets ``error``."""
        self._closed_by = error
        for queue in self._queues.values():
            for turn in queue:
                if not turn.done():
                    turn.set_exception(error)
        self._queues.clear()

    async def _enter(self, client: str) -> None:
        """Take a place, now or when it is the client's turn."""
        if self._closed_by is not None:
            raise self._closed_by
        if self._num_inside < self._num_places:
            self._num_inside += 1
            return
        self._make_room(client)
        turn: _Turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave()  # the place was given in the same moment
            else:
                self._forget(client, turn)
            raise

    def _make_room(self, client: str) -> None:
        """Refuse where the queue is full: the newest of whoever has most waiting, or the one that comes."""
        waiting = self.num_waiting
        if waiting < self._max_waiting:
            return
        refusal = QueueFullError(waiting, self._max_waiting)
        greediest = max(self._queues, key=lambda name: len(self._queues[name]), default=client)
        own = len(self._queues.get(client, ()))
        if len(self._queues.get(greediest, ())) <= own + 1:
            raise refusal
        newest = self._queues[greediest].pop()
        if not newest.done():
            newest.set_exception(refusal)

    def _forget(self, client: str, turn: _Turn) -> None:
        """Take a waiter out of its queue."""
        queue = self._queues.get(client)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._queues[client]

    def _leave(self) -> None:
        """Give a place back, and give it to the next client in rotation."""
        self._num_inside -= 1
        while self._queues and self._num_inside < self._num_places:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._queues[client] = queue
            if not turn.done():
                self._num_inside += 1
                turn.set_result(None)
