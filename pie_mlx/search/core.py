"""What the parts of a run share: journal, rules, contexts, budgets, and the attention to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pie_mlx.engine import Completion, Engine, Piece, Request
from pie_mlx.errors import InvalidParameter, PieError
from pie_mlx.events import PageCounts
from pie_mlx.search.dialogue import Dialogue
from pie_mlx.search.errors import TreeError
from pie_mlx.search.journal import Journal
from pie_mlx.search.node import NodeId, NodeStatus
from pie_mlx.search.params import SearchParams
from pie_mlx.search.rules import Rules
from pie_mlx.search.spending import Spending
from pie_mlx.search.steering import Command, RunEndedError, Steering
from pie_mlx.search.trace_events import (
    Event,
    FinishReason,
    Noticed,
    PagesRead,
    Paused,
    Resumed,
    Stepped,
    TextAdded,
)
from pie_mlx.search.tree import PoolCounts, Tree
from pie_mlx.search.workspace import Workspace

_POLL_S = 0.02
"""How long the run looks at one request before it looks at the user again."""


class SearchCore:
    """The shared middle of a run; only the run's thread changes it."""

    def __init__(
        self,
        engine: Engine,
        params: SearchParams,
        rules: Rules,
        dialogue: Dialogue,
        *,
        journal: Journal,
        steering: Steering,
        name: str,
    ) -> None:
        """Join the parts of the run ``name``."""
        self.engine = engine
        self.params = params
        self.rules = rules
        self.dialogue = dialogue
        self.journal = journal
        self.steering = steering
        self.workspace = Workspace(engine, dialogue, rules, name)
        self.spending = Spending(params)
        self.errors: list[PieError] = []
        """The engine's errors that nodes ended with, in the order of the nodes."""
        self.logprobs: dict[NodeId, tuple[float, ...]] = {}
        self.live: dict[NodeId, Request] = {}
        """Thoughts in flight whose pieces are told as they come; empty where nobody wants them."""
        pages = engine.readings().pages
        self.free_before = pages.free + pages.cached
        """Pages free, or free for the taking, before the run."""
        self.peak = PoolCounts()
        """The pool when this run held most."""
        self.repeat_recorded: Callable[[], None] = lambda: None
        """Repeats the user's doings that the trace holds in this place; the run installs it."""
        self._told_notices: set[str] = set()
        self._users_turn = False

    @property
    def tree(self) -> Tree:
        """The tree so far."""
        return self.journal.tree

    @property
    def page_size(self) -> int:
        """Slots a page."""
        return self.engine.settings.page_size

    def tell(self, event: Event) -> None:
        """Let an event happen."""
        self.journal.tell(event)

    def notice_once(self, text: str) -> None:
        """Tell the reader of the run something, the first time that it is so."""
        kind = text.split(":", maxsplit=1)[0]
        if kind not in self._told_notices:
            self._told_notices.add(kind)
            self.tell(Noticed(text=text))

    # --- pages -----------------------------------------------------------------------------

    def available_pages(self) -> int:
        """Return the pages that new branches may take: what is free, within the run's budget of pages."""
        pages = self.engine.readings().pages
        free = pages.free + pages.cached
        budget = self.params.budget_pages
        return free if budget is None else min(free, max(budget - (pages.private + pages.shared), 0))

    def read_pages(self) -> None:
        """Read the pool, remember its peak, and tell it."""
        self.tell(PagesRead(pool=self.note_pages(self.engine.readings().pages)))

    def note_pages(self, pages: PageCounts) -> PoolCounts:
        """Remember the widest moment; return what was read."""
        counts = PoolCounts(pages.free, pages.private, pages.shared, pages.cached, viewed=pages.views)
        if counts.held > self.peak.held:
            self.peak = counts
        return counts

    def make_resident(self, nodes: Iterable[NodeId]) -> None:
        """Compute what nodes lack in one batch, so that all their forks share it."""
        requests: list[Request] = []
        for node in nodes:
            context = self.workspace.context(node)
            if context.num_tokens - context.num_resident > self.page_size:
                try:
                    requests.append(context.prefill())
                except PieError:
                    continue  # the forks ask for the same tokens: each gets this refusal as its own outcome
        for request in requests:
            before = self.wait_quietly(request)
            if before is not None:
                self.spending.calls += 1

    # --- waiting and attending -------------------------------------------------------------

    def wait(self, request: Request) -> Completion:
        """Wait for a request, attending to the user and the clock meanwhile.

        Raises:
            RunEndedError: the run is to end.
            PieError: the request's error.
        """
        own = next((node for node, live in self.live.items() if live is request), None)
        while True:
            self._tell_pieces()
            try:
                while (piece := request.poll(_POLL_S)) is not None:
                    self._tell_piece(own, piece)
                    self.attend()
                    self._tell_pieces()
            except TimeoutError:
                self.attend()
                continue
            self.note_pages(self.engine.readings().pages)
            return request.partial

    def _tell_pieces(self) -> None:
        """Tell what has been written since the last time, of every thought in flight."""
        for node, request in list(self.live.items()):
            try:
                while (piece := request.poll(0.0)) is not None:
                    self._tell_piece(node, piece)
                del self.live[node]
            except TimeoutError:
                continue
            except PieError:
                del self.live[node]  # the request keeps its error: who waits for it meets it

    def _tell_piece(self, node: NodeId | None, piece: Piece) -> None:
        """Tell one piece of a thought, where its node is still being written."""
        if node is not None and piece.text and self.tree[node].status is NodeStatus.WRITING:
            self.tell(TextAdded(node=node, text=piece.text))

    def wait_quietly(self, request: Request) -> Completion | None:
        """Wait for a request whose error somebody else meets too; None is such an error."""
        try:
            return self.wait(request)
        except PieError:
            return None

    def settle(self, request: Request) -> None:
        """Wait until a request is over, however it ends; its owner reads the outcome later."""
        while request.phase not in ("finished", "failed", "cancelled"):
            self.attend()
            self.steering.doze(_POLL_S)

    def attend(self, *, between_actions: bool = False) -> None:
        """Carry out what the user wished, and end where the run must; called between any two events.

        Long wishes wait until one action is over and the next has not begun.

        Raises:
            RunEndedError: the user cancelled or accepted a node, or the time is over.
        """
        if self._users_turn:
            return  # a wish is being carried out: the next one waits for its end
        if self.steering.cancelled is not None:
            raise RunEndedError(FinishReason.CANCELLED, error=self.steering.cancelled)
        if self.spending.is_late():
            raise RunEndedError(FinishReason.BUDGET, why="seconds")
        self._users_turn = True
        try:
            self.repeat_recorded()
            while not self.journal.is_replaying:
                command = self.steering.take(long_too=between_actions)
                if command is None:
                    break
                self._obey(command)
        finally:
            self._users_turn = False

    def _obey(self, command: Command) -> None:
        """Carry out one wish; where the tree has moved on meanwhile, say that it was refused."""
        try:
            command.carry_out()
        except (TreeError, InvalidParameter) as error:
            self.tell(Noticed(text=f"{command.name} refused: {error.message}"))

    def gate(self) -> None:
        """Stand still before an action while the brake is on."""
        self.attend(between_actions=True)
        if not self.steering.is_paused:
            return
        if self.steering.take_step():
            self.tell(Stepped())
            return
        self.tell(Paused())
        while self.steering.is_paused:
            self.spending.paused_s += self.steering.wait()
            self.attend(between_actions=True)
            if self.steering.take_step():
                self.tell(Stepped())
                return
        self.tell(Resumed())
