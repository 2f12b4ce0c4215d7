"""Page tables: who may go on in a shared page, and what comes back when a step fails."""

from __future__ import annotations

from pie_mlx.kv.page_table import PageTable
from pie_mlx.kv.pool import PagePool


def grown(pool: PagePool, count: int) -> PageTable:
    """Return a table that shows ``count`` tokens."""
    table = PageTable(pool)
    table.reserve(count)
    table.commit(count)
    return table


def test_first_to_append_takes_the_shared_tail() -> None:
    """Two tables view a page with room: who reserves first goes on in it, the other starts its own."""
    pool = PagePool(4, 16)
    first = grown(pool, 10)
    second = first.fork()
    assert first.room() == second.room() == 6
    first.reserve(1)
    assert second.room() == 0
    assert second.pages_needed(1) == 1


def test_failed_step_leaves_the_shared_tail_to_both() -> None:
    """After a rollback the page's room is there again for each of its viewers."""
    pool = PagePool(4, 16)
    first = grown(pool, 10)
    second = first.fork()
    first.reserve(20)
    first.rollback()
    assert first.room() == second.room() == 6
    assert pool.num_free == 3


def test_sole_viewer_takes_the_dead_tail_back() -> None:
    """Slots behind a view that nobody else shows are written again; while another shows them, they are not."""
    pool = PagePool(4, 16)
    first = grown(pool, 12)
    second = first.fork()
    second.truncate(5)
    assert second.room() == 0
    first.clear()
    assert second.room() == 11
    assert second.reserve(1).tolist() == [16 + 5]


def test_cut_page_is_named_while_it_is_not_shown_in_full() -> None:
    """The last page counts as unfinished exactly while slots of it are not shown."""
    pool = PagePool(4, 16)
    table = grown(pool, 16)
    assert table.partial_page() is None
    table.truncate(15)
    assert table.partial_page() == table.last_page
    table.clear()
    assert table.partial_page() is None
