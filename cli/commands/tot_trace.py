"""``pie-mlx tot show``, ``export``, ``replay`` and ``tasks``: what follows from a trace, without a model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.options import OutputFlags, color_of
from pie_mlx.errors import InvalidParameter, UsageError

if TYPE_CHECKING:
    from pie_mlx.cli.render import Stdout
    from pie_mlx.errors import Fact
    from pie_mlx.search.trace import Trace
    from pie_mlx.search.tree import Tree

SCHEMA = "pie-mlx.tot-show/1"
TraceArgument = Annotated[
    Path | None, typer.Argument(help="A trace file (default: the latest run's).", show_default=False)
]


class Format(StrEnum):
    """What a trace can be turned into."""

    html = "html"
    svg = "svg"
    mermaid = "mermaid"
    dot = "dot"
    json = "json"
    speedscope = "speedscope"


def show(
    trace: TraceArgument = None,
    *,
    node: Annotated[str | None, typer.Option(help="Show the whole thoughts down to this node, such as 0.2.1.")] = None,
    output: OutputFlags,
) -> None:
    """Show the tree of a run."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.cli.traces import find_trace
    from pie_mlx.search.trace import read_trace

    read = read_trace(find_trace(trace))
    tree = read.tree()
    stdout = Stdout(color_of(output))
    if output.json:
        stdout.json(_tree_facts(read, tree))
    elif node is not None:
        _show_path(stdout, tree, node)
    else:
        _show_tree(stdout, read, tree)


def _tree_facts(trace: Trace, tree: Tree) -> dict[str, Fact]:
    """Return header, nodes and outcome as one object."""
    from pie_mlx.search.metrics import duplicate_share
    from pie_mlx.search.result import NodeResult

    outcome = tree.outcome
    return {
        **trace.header.to_json(),
        "schema": SCHEMA,
        "question": tree.question,
        "finish_reason": None if outcome is None else outcome.reason,
        "answer": None if outcome is None else outcome.answer,
        "solved": None if outcome is None else outcome.solved,
        "torn": trace.torn,
        "duplicate_share": duplicate_share(tree),
        "nodes": [NodeResult.of(found).to_json() for found in tree.walk()],
        "alarms": list(tree.alarms),
        "notices": list(tree.notices),
    }


def _show_tree(stdout: Stdout, trace: Trace, tree: Tree) -> None:
    """Show every node: fitted to a terminal, or a line a node with nothing cut."""
    from pie_mlx.cli.treerows import Canvas, draw_plain, draw_rows

    for label, text in _head(trace, tree):
        stdout.line(f"{label:<9} {text}")
    stdout.line()
    if stdout.is_terminal:
        stdout.show(*draw_rows(tree, Canvas(stdout.width, len(tree) + 1)))
    else:
        for line in draw_plain(tree):
            stdout.line(line)


def _head(trace: Trace, tree: Tree) -> list[tuple[str, str]]:
    """Return what is said above the tree."""
    from pie_mlx.cli.clean import one_line
    from pie_mlx.search.metrics import duplicate_share
    from pie_mlx.search.trace import RunStarted

    started = next((event for event in trace.events if isinstance(event, RunStarted)), None)
    how = "" if started is None else f" · {started.strategy} scored by {started.scorer}"
    oracle = " · steered by the oracle" if started is not None and started.oracle else ""
    outcome = tree.outcome
    share = duplicate_share(tree)
    repeats = f" · {share:.0%} of the thoughts repeat a sibling" if share else ""
    lines = [
        ("run", f"{trace.header.task}{how}{oracle} · seed {trace.header.seed} · {trace.header.model}"),
        ("question", one_line(tree.question)),
        ("tokens", f"{tree.tokens().completion} in {len(tree)} nodes{repeats}"),
    ]
    if outcome is None:
        torn = "; its last line is torn" if trace.torn else ""
        return [*lines, ("finish", f"none: the run was killed or still runs{torn} (pie-mlx tot resume {trace.path})")]
    solved = {True: " · solved", False: " · unsolved", None: ""}[outcome.solved]
    lines.append(("finish", f"{outcome.reason}{solved}"))
    if outcome.answer is not None:
        lines.append(("answer", one_line(outcome.answer)))
    return lines + [("note", one_line(text)) for text in tree.notices] + [("alarm", one_line(a)) for a in tree.alarms]


def _show_path(stdout: Stdout, tree: Tree, name: str) -> None:
    """Show the whole thoughts from the root to one node."""
    from pie_mlx.cli.treerows import score_text
    from pie_mlx.search.tree import parse_node_id

    for found in tree.path(parse_node_id(name)):
        score = f", score {score_text(found)}" if found.score is not None else ""
        stdout.line(f"[{found.id}] {found.status.value}{score}, {found.tokens.completion} tokens")
        if found.reasoning:
            stdout.line(f"(reasoning) {found.reasoning}")
        stdout.line(found.text or (tree.question if found.parent is None else ""))
        stdout.line()


def export(
    trace: TraceArgument = None,
    *,
    format_: Annotated[Format, typer.Option("--format", help="The format.")] = Format.html,
    to: Annotated[Path | None, typer.Option("--output", "-o", help="Write here (default: stdout).")] = None,
    output: OutputFlags,
) -> None:
    """Turn a trace into HTML, SVG, a graph, JSON or a speedscope profile."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout
    from pie_mlx.cli.traces import find_trace
    from pie_mlx.search.export import export as write
    from pie_mlx.search.trace import read_trace

    text = write(read_trace(find_trace(trace)), format_.value)
    if to is None:
        Stdout(color_of(output)).text(text if text.endswith("\n") else text + "\n")
        return
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{to} cannot be written: {error.strerror}", "choose another file with -o") from error
    Stderr(color_of(output)).line(f"{to} written ({len(text):,} characters)")


def replay(
    trace: TraceArgument = None,
    *,
    speed: Annotated[float, typer.Option(help="Times as fast as the run was.")] = 1.0,
    output: OutputFlags,
) -> None:
    """Show a run again as it went; in a pipe, a line an event, at once."""
    import sys

    from pie_mlx.cli.following import make_view, replay_events
    from pie_mlx.cli.render import Stdout, make_console
    from pie_mlx.cli.traces import find_trace
    from pie_mlx.search.trace import read_trace

    if not speed > 0:
        raise InvalidParameter("--speed", speed, "above 0")
    read = read_trace(find_trace(trace))
    read.tree()
    color = color_of(output)
    stdout = Stdout(color)
    if output.json:
        for event in read.events:
            stdout.json(event.to_json(), compact=True)
        return
    console = make_console(sys.stdout, color)
    view = make_view(console, stdout.line, f"replay · {read.header.task} · seed {read.header.seed}")
    replay_events(read.events, view, speed=speed if console.is_terminal else None)


def tasks(*, output: OutputFlags) -> None:
    """List the tasks."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.search.tasks import task_class, task_names

    classes = [task_class(name) for name in task_names()]
    stdout = Stdout(color_of(output))
    if output.json:
        facts = [
            {
                "name": found.name,
                "summary": found.summary,
                "splits": list(found.splits),
                "checks": found.has_check,
                "legal_moves": found.has_legal_moves,
            }
            for found in classes
        ]
        stdout.json({"schema": "pie-mlx.tasks/1", "tasks": facts})
        return
    rows = [
        (
            found.name,
            "✓" if found.has_check else "",
            "✓" if found.has_legal_moves else "",
            ", ".join(found.splits) or "–",
            found.summary,
        )
        for found in classes
    ]
    stdout.table(("task", "checks", "moves", "splits", "about"), rows)
