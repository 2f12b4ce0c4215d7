"""A set of searches as a table: what it reached and cost, beside chance and simpler strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pie_mlx.cli.figures import format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pie_mlx.search.baselines import Baselines
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.rows import SetRow
    from pie_mlx.search.sets import SetResult

HEADER = ("", "first", "any", "mean", "tokens", "calls", "time")
NUMBERS = (1, 2, 3, 4, 5, 6)
"""Columns of numbers."""


def percent(share: float | None) -> str:
    """Return a share in percent, ``–`` where nothing can be told."""
    return "–" if share is None else f"{100 * share:.1f} %"


def set_rows(result: SetResult) -> list[tuple[str, ...]]:
    """Return the table's rows: the search, the rivals, and what needs no model."""
    used = sum(row.tokens_used for row in result.rows)
    costs = (format_count(used), format_count(result.calls), format_seconds(result.wall_s))
    rows = [(search_name(result.params), percent(result.first), percent(result.any), percent(result.mean), *costs)]
    for rival in result.rivals:
        name = rival.strategy.replace("_", " ") + ("" if rival.n == len(result.rows) else f" ({rival.n} tasks)")
        costs = (format_count(rival.tokens), format_count(rival.calls), format_seconds(rival.wall_s))
        rows.append((name, percent(rival.first), percent(rival.any), percent(rival.mean), *costs))
    return rows + ([] if result.baselines is None else _chance_rows(result.baselines))


def _chance_rows(baselines: Baselines) -> list[tuple[str, ...]]:
    """Return what legal moves reach without a model."""
    beams = (
        (f"beam {baselines.beam}, random values", baselines.beam_random),
        (f"beam {baselines.beam}, heuristic", baselines.beam_estimate),
        (f"beam {baselines.beam}, known truth", baselines.beam_oracle),
    )
    rows = [_row(name, share) for name, share in beams if share is not None]
    return rows + [_row(f"random play, best of {tries}", share) for tries, share in baselines.random_pass]


def _row(name: str, share: float) -> tuple[str, ...]:
    """Return a row without costs."""
    return (name, percent(share), "", "", "", "", "")


def search_name(params: SearchParams) -> str:
    """Name a search by what decides its result."""
    parts = [params.strategy.replace("_", " ")]
    if params.strategy in ("beam", "dvts"):
        parts[0] += f" {params.beam}"
    parts.append("legal moves" if params.propose == "legal" else f"breadth {params.breadth}")
    if params.scorer != "auto":
        parts.append(params.scorer)
    if params.oracle:
        parts.append("oracle")
    return ", ".join(parts)


def set_notes(result: SetResult) -> list[tuple[str, str]]:
    """Return what is said below the table, as labels and texts."""
    done, wanted = len(result.rows), result.wanted
    tasks = f"{done} × {result.task}" if result.is_complete else f"{done} of {wanted} × {result.task}: not complete"
    failed = f" · {result.failed} failed" if result.failed else ""
    thoughts = (
        f"{percent(result.invalid)} invalid · {percent(result.unparsed)} not parsed · "
        f"{percent(result.duplicates)} repeat a sibling"
    )
    notes = [("set", tasks + failed), ("thoughts", thoughts)]
    if result.auc is not None or result.regret is not None:
        notes.append(("scorer", f"AUC {_figure(result.auc)} (0.5 is chance) · regret {_figure(result.regret)}"))
    if result.params.oracle:
        notes.append(("oracle", "the known truth steered this search: it is no result of the model"))
    return notes


def _figure(value: float | None) -> str:
    """Return a share with two digits."""
    return "–" if value is None else f"{value:.2f}"


def row_line(done: int, wanted: int, row: SetRow) -> str:
    """Return one finished task as a line."""
    result = row.result
    word = {True: "solved", False: "not solved", None: str(result.finish_reason)}[result.solved]
    if result.error is not None:
        word = f"failed: {result.error.code}"
    cost = f"{len(result.nodes)} nodes, {row.tokens_used} tokens, {format_seconds(result.wall_s)}"
    return f"{done}/{wanted}  {row.question}  {word}  ({cost})"


def solved_so_far(rows: Sequence[SetRow]) -> int:
    """Count the tasks that are solved."""
    return sum(row.result.solved is True for row in rows)
