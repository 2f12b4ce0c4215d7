"""The gate in front of the engine: places, turns and refusals."""

from __future__ import annotations

import asyncio

import pytest

from pie_mlx.server.admission import Gate
from pie_mlx.server.errors import DrainingError, QueueFullError


async def _visit(gate: Gate, client: str, order: list[str], leave: asyncio.Event) -> None:
    """Enter, note it, and stay until told."""
    async with gate.place(client):
        order.append(client)
        await leave.wait()


async def _settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_clients_take_turns_whatever_they_ask() -> None:
    """One that asks ten times is served once for each time that the others are."""

    async def scene() -> list[str]:
        gate, order, leave = Gate(1, 100), [], asyncio.Event()
        order = list[str]()
        tasks = [asyncio.create_task(_visit(gate, "a", order, leave)) for _ in range(10)]
        await _settle()
        tasks += [asyncio.create_task(_visit(gate, client, order, leave)) for client in "bbc"]
        await _settle()
        leave.set()
        await asyncio.gather(*tasks)
        assert gate.num_inside == gate.num_waiting == 0
        return order

    assert "".join(asyncio.run(scene())) == "aabcabaaaaaaa"


def test_no_more_are_inside_than_there_are_places() -> None:
    """Places are given back when their holders leave, fail or are cancelled, also in the moment of their turn."""

    async def scene() -> None:
        gate, order, leave = Gate(2, 100), list[str](), asyncio.Event()
        tasks = [asyncio.create_task(_visit(gate, str(at), order, leave)) for at in range(8)]
        await _settle()
        assert (gate.num_inside, gate.num_waiting) == (2, 6)
        tasks[5].cancel()
        await _settle()
        assert gate.num_waiting == 5
        leave.set()
        tasks[0].cancel()
        # The turn that this hands on and the cancellation of its receiver meet in one round of the loop.
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.num_inside == gate.num_waiting == 0

    asyncio.run(scene())


def test_the_newest_of_the_greediest_gives_way() -> None:
    """Where one client fills the queue, another still gets in, at the cost of the first one's newest request."""

    async def scene() -> None:
        gate, order, leave = Gate(1, 3), list[str](), asyncio.Event()
        greedy = [asyncio.create_task(_visit(gate, "a", order, leave)) for _ in range(4)]
        await _settle()
        modest = asyncio.create_task(_visit(gate, "b", order, leave))
        await _settle()
        assert isinstance(greedy[3].exception(), QueueFullError)
        with pytest.raises(QueueFullError):
            await gate.place("a").__aenter__()
        leave.set()
        await asyncio.gather(modest, *greedy[:3])
        assert order == ["a", "a", "b", "a"]

    asyncio.run(scene())


def test_a_closed_gate_sends_everybody_home() -> None:
    """Waiters and comers get the error of the closing; who is inside may finish."""

    async def scene() -> None:
        gate, order, leave = Gate(1, 3), list[str](), asyncio.Event()
        inside = asyncio.create_task(_visit(gate, "a", order, leave))
        waiting = asyncio.create_task(_visit(gate, "b", order, leave))
        await _settle()
        gate.close(DrainingError())
        for attempt in (waiting, _visit(gate, "c", order, leave)):
            with pytest.raises(DrainingError):
                await attempt
        leave.set()
        await inside
        assert gate.num_inside == 0

    asyncio.run(scene())
