"""A run: one search on one engine, from its parameters to its result.

The run owns its tree, its budgets, its trace and its contexts. It works on a thread of its own, and however it
ends (an answer, a budget, starvation, a fault, the user) it closes every context that it opened and tells exactly
one terminal event.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Impossible, InvalidParameter, PieError, PressureError, TokenizerMissing, UsageError
from pie_mlx.search.concurrency import pages_for
from pie_mlx.search.controls import Controls
from pie_mlx.search.core import SearchCore
from pie_mlx.search.dialogue import Dialogue, TextModel
from pie_mlx.search.ending import Ending, conclude
from pie_mlx.search.expansion import Expander
from pie_mlx.search.failures import CrashedError, NothingProposedError
from pie_mlx.search.journal import Journal, Listen
from pie_mlx.search.judging import EngineJudge, build_scorer, judge_early
from pie_mlx.search.node import ROOT, TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.progress import Progress
from pie_mlx.search.result import SearchResult
from pie_mlx.search.rules import Rules
from pie_mlx.search.steering import RunEndedError, Steering
from pie_mlx.search.strategies import STRATEGIES
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.trace import Header, Trace, TraceWriter
from pie_mlx.search.trace_events import FinishReason, NodeDone, NodeStarted, RunStarted
from pie_mlx.search.tree import Tree
from pie_mlx.search.verbs import Verbs
from pie_mlx.search.writing import Pen

_numbers = itertools.count(1)


_WHOLE_ANSWERS = frozenset({"greedy", "best_of_n", "self_consistency"})
"""Strategies whose paths need not reach their full depth."""


class Run(Controls):
    """One search. :meth:`start` it, steer it from any thread, and take its :meth:`result`."""

    def __init__(
        self,
        engine: Engine,
        task: Task[Any],
        params: SearchParams,
        *,
        trace: TraceWriter | None = None,
        listen: Listen | None = None,
        recorded: Trace | None = None,
        name: str = "",
        deltas: bool = False,
    ) -> None:
        """Prepare a run; nothing is computed yet.

        ``trace`` is written to and belongs to the caller; ``listen`` gets every event, on the run's thread.
        With ``deltas`` thoughts are told piece by piece too, in the order in which they come.
        ``recorded`` is a trace to go on with: its work is taken from it, and only what is missing is done.

        Raises:
            InvalidParameter: the parameters do not fit the task or the model.
            TokenizerMissing: the engine has no tokenizer that can encode text.
        """
        text: object = engine.codec
        if not isinstance(text, TextModel):
            raise TokenizerMissing(engine.facts.model, "a search needs a tokenizer that encodes text")
        if params.propose == "legal" and not task.has_legal_moves:
            raise InvalidParameter("propose", "legal", f"model: task {task.name!r} cannot list its moves")
        if params.propose == "legal" and params.scorer == "logprob":
            raise InvalidParameter("scorer", "logprob", "another one: legal moves are not written by the model")
        self.name = name or f"run{next(_numbers)}"
        self.params = params
        self._engine = engine
        self._steering = Steering()
        self._journal = Journal(trace, listen, recorded)
        self._over = threading.Event()
        rules = Rules(task, params.depth, use_truth=params.oracle)
        dialogue = Dialogue(text, system=task.system, prompt=task.prompt(), reasoning_tokens=params.reasoning_tokens)
        self._core = SearchCore(
            engine, params, rules, dialogue, journal=self._journal, steering=self._steering, name=self.name
        )
        self._judge = EngineJudge(self._core)
        self._scorer = build_scorer(self._core, self._judge.costs)
        pen = Pen(self._core.workspace, dialogue, params, task.stop)
        self._expander = Expander(self._core, pen, partial(judge_early, self._core, self._judge), tells_pieces=deltas)
        self._verbs = Verbs(self._core, self._expander)
        self._core.repeat_recorded = self._verbs.repeat_recorded
        self._thread: threading.Thread | None = None
        self._result: SearchResult | None = None
        self._crash: BaseException | None = None

    @classmethod
    def from_trace(
        cls,
        engine: Engine,
        task: Task[Any],
        trace: Trace,
        *,
        writer: TraceWriter,
        listen: Listen | None = None,
        deltas: bool = False,
    ) -> Run:
        """Prepare to finish a run that was killed: the same tree, with only the missing work done.

        Raises:
            UsageError: the run has finished, or the trace belongs to another task or model.
        """
        if trace.finished is not None:
            raise UsageError(f"{trace.path}: the run has finished", f"pie-mlx tot show {trace.path}")
        for what, was, is_ in (
            ("task", trace.header.task, task.name),
            ("model", trace.header.revision, engine.facts.fingerprint),
        ):
            if was != is_:
                raise UsageError(f"{trace.path}: the trace was made with {what} {was!r}, this is {is_!r}")
        params = SearchParams.from_json(dict(trace.header.params))
        return cls(
            engine,
            task,
            params,
            trace=writer,
            listen=listen,
            recorded=trace,
            name=trace.header.run,
            deltas=deltas,
        )

    def header(self) -> Header:
        """Return the first line of this run's trace."""
        facts, settings = self._engine.facts, self._engine.settings
        pool = {"pages": self._engine.readings().pages.total, "page_size": settings.page_size}
        return Header(
            run=self.name,
            model=facts.model,
            revision=facts.fingerprint,
            seed=self.params.seed,
            task=self._core.rules.task.name,
            params=self.params.to_json(),
            pool={**pool, "bytes": pool["pages"] * settings.page_size * facts.kv_bytes_per_token},
            created_s=time.time(),
        )

    def record(self, writer: TraceWriter) -> None:
        """Write the trace to ``writer``; before :meth:`start` only."""
        assert self._thread is None, "a trace is complete: it starts with the run"
        self._journal.record(writer)

    # --- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, on a thread of the run's own.

        Raises:
            UsageError: it was started before.
        """
        if self._thread is not None:
            raise UsageError("a run is started once")
        self._thread = threading.Thread(target=self._main, name=f"pie-search-{self.name}", daemon=True)
        self._thread.start()

    def result(self, timeout_s: float | None = None) -> SearchResult:
        """Wait for the end, starting the run if that was not done; a keyboard interrupt cancels it.

        A run that starved or failed has a result too: its ``error`` says why, with its type.

        Raises:
            TimeoutError: it is still running after ``timeout_s`` seconds.
            KeyboardInterrupt: as it came, after the run has given its pages back.
        """
        if self._thread is None:
            self.start()
        try:
            if not self._over.wait(timeout_s):
                raise TimeoutError(f"{self.name} is still running after {timeout_s} s")
        except KeyboardInterrupt:
            self.cancel()
            self._over.wait()
            raise
        if self._crash is not None:
            raise self._crash
        assert self._result is not None, "a run that is over has a result or a crash"
        return self._result

    def outcome(self) -> SearchResult:
        """Wait for the end as :meth:`result` does; whatever failed, also the task's own code, is the result's error.

        Raises:
            KeyboardInterrupt: as it came, after the run has given its pages back.
        """
        try:
            return self.result()
        except Exception as crash:
            if self._result is None:
                raise
            error = crash if isinstance(crash, PieError) else CrashedError(type(crash).__name__, str(crash))
            return replace(self._result, error=error)

    @property
    def tree(self) -> Tree:
        """The tree so far; hold :attr:`tree_lock` to read it from another thread."""
        return self._journal.tree

    @property
    def rules(self) -> Rules:
        """The task as this run plays it: states and answers by node."""
        return self._core.rules

    @property
    def tree_lock(self) -> AbstractContextManager[bool]:
        """Held while the tree changes."""
        return self._journal.lock

    def _main(self) -> None:
        """Search, conclude, give everything back: the thread's whole life."""
        progress = Progress(self._core, self._verbs, self._expander, self._judge, self._scorer)
        ending: Ending
        try:
            ending = self._search(progress)
        except RunEndedError as ended:
            ending = Ending(ended.reason, ended.why, ended.node, ended.error)
        except PieError as error:
            reason = FinishReason.STARVED if isinstance(error, PressureError) else FinishReason.FAILED
            ending = Ending(reason, error=error)
        except BaseException as error:  # noqa: BLE001 the thread's outer edge: the waiting caller gets it, the pages come back
            self._crash = error
            ending = Ending(FinishReason.FAILED, f"{type(error).__name__}: {error}")
        try:
            self._result = conclude(self._core, ending, progress)
        except BaseException as error:  # noqa: BLE001 as above: a trace that cannot be written, or a listener that raises
            self._crash = self._crash or error
        finally:
            progress.close()
            self._core.workspace.close_all()
            self._over.set()

    def _refuse_impossible_path(self) -> None:
        """Refuse a search whose single path, at its full length, the pool could not hold even alone.

        Such a run might end well with short thoughts, after minutes of recomputing; its user is better told at once.

        Raises:
            Impossible: with both numbers.
            InvalidParameter: the run's own budget of pages is too small.
        """
        core, params = self._core, self.params
        if params.propose != "model" or params.strategy in _WHOLE_ANSWERS:
            return
        thought = params.max_tokens + params.reasoning_tokens * (core.dialogue.think_markers is not None)
        need = pages_for(len(core.dialogue.root) + core.rules.depth * thought, core.page_size)
        total = self._engine.readings().pages.total
        if need > total:
            raise Impossible(need, total)
        if params.budget_pages is not None and need > params.budget_pages:
            wanted = f"at least {need}, which one path of this search needs"
            raise InvalidParameter("budget_pages", params.budget_pages, wanted)

    def _search(self, progress: Progress) -> Ending:
        """Drive the strategy to its end."""
        core, task = self._core, self._core.rules.task
        kind = "none" if self._scorer is None else self._scorer.kind
        core.tell(
            RunStarted(question=task.question, strategy=self.params.strategy, scorer=kind, oracle=self.params.oracle)
        )
        core.tell(NodeStarted(node=ROOT, seed=self.params.seed))
        known = core.journal.known_thought(ROOT)
        root = known or NodeDone(node=ROOT, tokens=TokenCounts(prompt=len(core.dialogue.root)))
        core.tell(root)
        core.spending.tokens += TokenCounts(prompt=len(core.dialogue.root))
        self._refuse_impossible_path()
        plan = STRATEGIES[self.params.strategy]().plan(progress)
        action = next(plan, None)
        while action is not None:
            core.gate()
            budget = core.spending.used_up()
            if budget is not None:
                return Ending(FinishReason.BUDGET, budget)
            reply = progress.carry_out(action)
            if self.params.stop_first and progress.has_solution():
                return Ending(FinishReason.ANSWER)
            try:
                action = plan.send(reply)
            except StopIteration:
                action = None
        core.attend()
        if len(core.tree) == 1:
            raise NothingProposedError(task.name)
        return Ending(None)
