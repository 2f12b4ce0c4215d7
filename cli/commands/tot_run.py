"""``pie-mlx tot run`` and ``tot resume``: one search, live on stderr, its answer on stdout."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_mlx.cli.figures import format_seconds
from pie_mlx.cli.options import EngineFlags, Group, OutputFlags, load_config, model_name, open_engine
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.config import Settings
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.result import SearchResult
    from pie_mlx.search.tasks import Task
    from pie_mlx.search.trace import Event

_EXIT_UNSOLVED = 5


@dataclass(frozen=True)
class SearchFlags(Group):
    """What is searched, and how; a flag not given keeps the search's own default."""

    panel = "Search"

    strategy: Annotated[
        str | None,
        typer.Option(help="greedy, best_of_n, self_consistency, beam, dfs, best_first, dvts or mcts (default: beam)."),
    ] = None
    scorer: Annotated[
        str | None,
        typer.Option(help="auto, label, p_true, vote, logprob, move, checker, consistency, rating, oracle or none."),
    ] = None
    propose: Annotated[str | None, typer.Option(help="Who proposes: model, or legal (the task's own moves).")] = None
    breadth: Annotated[int | None, typer.Option("--breadth", "-b", help="Children of an expanded node.")] = None
    beam: Annotated[int | None, typer.Option("--beam", "-k", help="Nodes kept on a level.")] = None
    depth: Annotated[int | None, typer.Option("--depth", "-d", help="Levels (default: the task's own).")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Tokens of one thought.")] = None
    answer_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer written from the thoughts.")] = None
    reasoning_tokens: Annotated[int | None, typer.Option(help="Reasoning tokens before each thought.")] = None
    temperature: Annotated[float | None, typer.Option("--temp", "-t", help="Temperature of the thoughts.")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the smallest set of tokens with this probability.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.")] = None
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this likely, as a share of the best.")] = None
    seed: Annotated[int | None, typer.Option(help="Decides every draw; the same seed, the same tree.")] = None
    rollouts: Annotated[int | None, typer.Option(help="Descents of mcts.")] = None
    exploration: Annotated[float | None, typer.Option(help="The constant c of mcts.")] = None
    keep_above: Annotated[float | None, typer.Option(help="dfs leaves a node whose value is below this.")] = None
    self_weight: Annotated[
        str | None, typer.Option(help="self_consistency: one vote a sample (count), or by value (value).")
    ] = None


@dataclass(frozen=True)
class BudgetFlags(Group):
    """What the search may spend."""

    panel = "Budget"

    budget_tokens: Annotated[int | None, typer.Option(help="Tokens in all.")] = None
    budget_seconds: Annotated[float | None, typer.Option(help="Seconds in all.")] = None
    budget_nodes: Annotated[int | None, typer.Option(help="Nodes in all.")] = None
    budget_pages: Annotated[int | None, typer.Option(help="Pages held at once.")] = None
    patience: Annotated[int | None, typer.Option(help="End after this many expansions without a better node.")] = None
    stop_first: Annotated[
        bool | None, typer.Option("--stop-first/--all", help="End at the first solved node, or find all.")
    ] = None
    dedup: Annotated[bool | None, typer.Option("--dedup/--no-dedup", help="Let equal states share one node.")] = None
    oracle: Annotated[
        bool | None, typer.Option("--oracle", help="Allow scores from the known truth; the result says so.")
    ] = None


@dataclass(frozen=True)
class TaskFlags(Group):
    """What the question is about, and what is kept of the run."""

    task: Annotated[str, typer.Option("--task", help="A task (tot tasks lists them), or path.py:MyTask.")] = "free"
    split: Annotated[str | None, typer.Option(help="Part of the test set that a problem is drawn from.")] = None
    num: Annotated[int | None, typer.Option("--n", "-n", help="Search so many problems of the test set.")] = None
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="With --n: greedy and best of n beside it, for its tokens.")
    ] = True
    check: Annotated[bool, typer.Option("--check", help="Exit 5 where the task was not solved.")] = False
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the trace here (default: a new file in the state folder); with --n a folder."),
    ] = None
    tui: Annotated[bool, typer.Option("--tui", help="Watch and steer it in the workbench.")] = False


def run(
    question: Annotated[
        str | None, typer.Argument(help="The question; - reads stdin; none draws a problem.", show_default=False)
    ] = None,
    *,
    about: TaskFlags,
    search: SearchFlags,
    budget: BudgetFlags,
    engine: EngineFlags,
    output: OutputFlags,
) -> None:
    """Search a tree of thoughts for an answer."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.prompt import gather_prompt
    from pie_mlx.cli.traces import new_trace_path
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.tasks import make_task

    settings = load_config(engine, output).settings
    stderr = Stderr(settings.color)
    given = {key: value for key, value in (search.given() | budget.given()).items() if value is not None}
    params = SearchParams(**given)  # type: ignore[arg-type]
    if about.num is not None:
        _run_set(settings, stderr, about, params, question, as_json=output.json)
        return
    asked = None if question is None else gather_prompt(question, (), stderr=stderr, joins_stdin=False)
    task = make_task(about.task, asked, seed=params.seed, split=about.split)
    if about.check and not task.has_check:
        raise UsageError(f"task {task.name!r} cannot check its answers", "drop --check, or choose a task that can")
    if asked is None:
        stderr.note(f"problem drawn by seed {params.seed}: {task.question}")
    if about.tui:
        from pie_mlx.cli.workbench import check_terminal

        check_terminal()
    path = about.trace or new_trace_path(task.name)
    search_it = _search_in_workbench if about.tui else _search
    result = search_it(settings, stderr, _Plan(task, params, path, resumes=False))
    _finish(result, path, _Ending(stderr, settings, json=output.json, check=about.check))


def _run_set(
    settings: Settings, stderr: Stderr, about: TaskFlags, params: SearchParams, question: str | None, *, as_json: bool
) -> None:
    """Search a set of problems."""
    from pie_mlx.cli.commands.tot_set import SetPlan, make_traces, search_set
    from pie_mlx.search.tasks import draw_test_set

    assert about.num is not None, "a set has a size"
    if question is not None:
        raise UsageError("a question and --n exclude each other", "drop one of them")
    if about.tui:
        raise UsageError("the workbench shows one search, not a set", "drop --tui or --n")
    tasks = draw_test_set(about.task, about.num, seed=params.seed, split=about.split)
    if about.check and not tasks[0].has_check:
        raise UsageError(f"task {tasks[0].name!r} cannot check its answers", "drop --check, or choose a task that can")
    plan = SetPlan(tasks, params, make_traces(about.trace, tasks[0].name), about.compare)
    search_set(settings, stderr, plan, as_json=as_json, check=about.check)


def resume(
    trace: Annotated[Path, typer.Argument(help="The trace of a run that was killed.")],
    *,
    task: Annotated[str | None, typer.Option(help="The task, where it is a file of your own.")] = None,
    tui: Annotated[bool, typer.Option("--tui", help="Watch and steer it in the workbench.")] = False,
    engine: EngineFlags,
    output: OutputFlags,
) -> None:
    """Finish a run that was killed: the same tree, only the missing work done."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.tasks import make_task
    from pie_mlx.search.trace import RunStarted, read_trace

    settings = load_config(engine, output).settings
    recorded = read_trace(trace)
    started = next((event for event in recorded.events if isinstance(event, RunStarted)), None)
    if started is None:
        raise UsageError(f"{trace}: the run was killed before it began", "start it again with pie-mlx tot run")
    made = make_task(task or recorded.header.task, started.question)
    stderr = Stderr(settings.color)
    params = SearchParams.from_json(dict(recorded.header.params))
    if tui:
        from pie_mlx.cli.workbench import check_terminal

        check_terminal()
    search_it = _search_in_workbench if tui else _search
    result = search_it(settings, stderr, _Plan(made, params, trace, resumes=True))
    _finish(result, trace, _Ending(stderr, settings, json=output.json, check=False))


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be run."""

    task: Task[Any]
    params: SearchParams
    path: Path
    resumes: bool


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the end is told."""

    stderr: Stderr
    settings: Settings
    json: bool
    check: bool


def _search(settings: Settings, stderr: Stderr, plan: _Plan) -> SearchResult:
    """Run the search, written to its trace and shown while it runs."""
    from pie_mlx.cli.following import follow, make_view
    from pie_mlx.search.run import Run
    from pie_mlx.search.trace import TraceWriter, read_trace

    view = make_view(stderr.console, stderr.line, run_title(plan.task.name, plan.params))
    live = stderr.console.is_terminal
    with stderr.waiting(f"loading {model_name(settings)}"):
        engine = open_engine(settings)
    with engine:
        if plan.resumes:
            recorded = read_trace(plan.path)
            with TraceWriter.resume(recorded) as writer:
                run = Run.from_trace(engine, plan.task, recorded, writer=writer, listen=view.take, deltas=live)
                return follow(run, view)
        run = Run(engine, plan.task, plan.params, listen=view.take, deltas=live)
        with TraceWriter.create(plan.path, run.header()) as writer:
            run.record(writer)
            return follow(run, view)


def _search_in_workbench(settings: Settings, stderr: Stderr, plan: _Plan) -> SearchResult:
    """Run the search where it is watched and steered; leaving the workbench ends it."""
    from pie_mlx.cli.workbench import watch_run
    from pie_mlx.search.run import Run
    from pie_mlx.search.trace import TraceWriter, read_trace

    with stderr.waiting(f"loading {model_name(settings)}"):
        engine = open_engine(settings)
    with engine, ExitStack() as stack:

        def make_run(listen: Callable[[Event], None]) -> Run:
            if plan.resumes:
                recorded = read_trace(plan.path)
                writer = stack.enter_context(TraceWriter.resume(recorded))
                return Run.from_trace(engine, plan.task, recorded, writer=writer, listen=listen)
            run = Run(engine, plan.task, plan.params, listen=listen, deltas=True)
            run.record(stack.enter_context(TraceWriter.create(plan.path, run.header())))
            return run

        return watch_run(engine, settings, make_run).result()


def run_title(task: str, params: SearchParams) -> str:
    """Return the heading of a run's tree."""
    parts = [task, params.strategy]
    if params.strategy != "greedy":
        parts.append(f"breadth {params.breadth}")
    if params.strategy in ("beam", "dvts"):
        parts.append(f"beam {params.beam}")
    if params.depth is not None:
        parts.append(f"depth {params.depth}")
    return " · ".join(parts)


def _finish(result: SearchResult, path: Path, ending: _Ending) -> None:
    """Give the answer out, tell what the run cost and what comes next, and exit with its code."""
    from pie_mlx.cli.diagnostics import Report
    from pie_mlx.cli.render import Stdout

    stdout = Stdout(ending.settings.color)
    if ending.json:
        stdout.json(result.to_json())
    elif result.answer is not None:
        stdout.line(result.answer)
    for label, text in summary_lines(result, path):
        ending.stderr.labelled(label, text)
    if result.error is not None and not ending.json and result.error.exit_code != 130:
        ending.stderr.report(Report.of(result.error))
    code = result.exit_code
    if not code and ending.check and result.solved is not True:
        code = _EXIT_UNSOLVED
    if code:
        raise typer.Exit(code)


def summary_lines(result: SearchResult, path: Path) -> list[tuple[str, str]]:
    """Return what is said of a run at its end, as labels and texts."""
    solved = {True: " · solved", False: " · not solved", None: ""}[result.solved]
    cost = f"{len(result.nodes)} nodes · {result.tokens.completion} tokens · {format_seconds(result.wall_s)}"
    oracle = " · steered by the oracle" if result.oracle else ""
    pages = result.pages
    peak = f"at most {pages.peak} held of {pages.total}, each shared {pages.sharing_ratio:.1f}×"
    repeats = f" · {result.duplicate_share:.0%} repeat a sibling" if result.duplicate_share else ""
    lines = [
        ("result", f"{result.finish_reason}{solved} · {cost}{repeats}{oracle}"),
        ("pages", f"{pages.free_before} free → {peak} → {pages.free_after} free"),
        ("trace", str(path)),
    ]
    advice = _advice(result)
    if advice:
        lines.append(("try", advice))
    lines.append(("next", "pie-mlx tot show | tot replay | tot export -o tree.html"))
    return lines


def _advice(result: SearchResult) -> str | None:
    """Say what may help where there is no good answer."""
    from pie_mlx.search.trace import FinishReason

    if result.finish_reason is FinishReason.BUDGET:
        return "a larger --budget-tokens, --budget-seconds or --budget-nodes"
    if result.finish_reason is FinishReason.UNSOLVED or result.solved is False:
        return "a wider search (--breadth, --beam), another --seed, or a larger --model"
    return None
