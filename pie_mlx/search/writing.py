"""One thought while the model writes it: its context, its request, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pie_mlx.engine import Completion, Context, Request
from pie_mlx.engine.context import GREEDY
from pie_mlx.errors import PieError
from pie_mlx.search.dialogue import Dialogue
from pie_mlx.search.node import ROOT, NodeId, TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.spending import count_tokens
from pie_mlx.search.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Slot:
    """A child that is to be written."""

    parent: NodeId
    node: NodeId
    seed: int
    max_tokens: int
    is_answer: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A thought as the model wrote it, or the error that ended it."""

    text: str = ""
    reasoning: str = ""
    finish: str = "stop"
    tokens: TokenCounts = field(default_factory=TokenCounts)
    logprobs: tuple[float, ...] = ()
    error: PieError | None = None


Wait = Callable[[Request], Completion]
"""Waits for a request, attending to the user meanwhile; raises the request's error."""


class Pen:
    """Writes thoughts: reasoning first where the model thinks, then the thought on a budget of its own."""

    def __init__(self, workspace: Workspace, dialogue: Dialogue, params: SearchParams, stops: tuple[str, ...]) -> None:
        """Write in contexts of ``workspace``; ``stops`` end a thought, not an answer."""
        self._workspace = workspace
        self._dialogue = dialogue
        self._params = params
        self._stops = stops

    def start(self, slot: Slot, lead: str) -> Writing:
        """Fork the parent and submit.

        Raises:
            PieError: the engine refused the request.
        """
        lead_tokens = self._dialogue.lead(lead)
        markers = self._dialogue.think_markers
        if markers is None:
            context = self._workspace.branch(slot.parent, slot.node, lead_tokens)
            return Writing(slot, context, self._thought(slot, context), len(lead_tokens) + 1)
        opening = self._dialogue.marker(markers[0])
        context = self._workspace.branch(slot.parent, slot.node, opening)
        request = context.submit(
            max_tokens=self._params.reasoning_tokens, sampling=self._params.sampling(slot.seed), stop=(markers[1],)
        )
        return Writing(slot, context, request, len(opening) + 1, lead=lead_tokens)

    def _thought(self, slot: Slot, context: Context) -> Request:
        """Submit the thought itself."""
        stops = () if slot.is_answer else self._stops
        # An answer that sums up a path has no siblings to differ from: the likeliest words serve it best.
        sums_up = slot.is_answer and slot.parent != ROOT
        sampling = GREEDY if sums_up else self._params.sampling(slot.seed)
        return context.submit(max_tokens=slot.max_tokens, sampling=sampling, stop=stops)

    def finish(self, writing: Writing, wait: Wait) -> Written:
        """Wait until a thought is written; an error of the engine is part of the outcome."""
        try:
            first = wait(writing.request)
            if writing.lead is None:
                return _written(first, count_tokens(first, writing.own_prompt))
            return self._after_reasoning(writing, first, wait)
        except PieError as error:
            return Written(finish="failed", error=error)

    def _after_reasoning(self, writing: Writing, first: Completion, wait: Wait) -> Written:
        """Close the think block, whether or not the model did, and let the thought be written."""
        markers = self._dialogue.think_markers
        assert markers is not None, "only a thinking model gets here"
        assert writing.lead is not None, "the lead waits while the model reasons"
        kept = len(first.tokens)
        closing = self._dialogue.marker(markers[1])
        # A stop string's own tokens stand at the end of the context: the marker replaces them.
        if first.finish_reason == "stop":
            kept = _without_marker(first.tokens, closing)
        writing.context.truncate(writing.context.num_tokens - (len(first.tokens) - kept))
        writing.context.append([*closing, *writing.lead])
        writing.request = self._thought(writing.slot, writing.context)
        second = wait(writing.request)
        costs = count_tokens(first, writing.own_prompt) + count_tokens(second, len(closing) + len(writing.lead) + 1)
        return _written(second, costs, reasoning=first.text.strip())


def _without_marker(tokens: tuple[int, ...], marker: tuple[int, ...]) -> int:
    """Return the length of ``tokens`` without ``marker`` at its end."""
    ends_so = tokens[len(tokens) - len(marker) :] == marker
    return len(tokens) - len(marker) if ends_so else len(tokens)


@dataclass(slots=True)
class Writing:
    """A thought in flight."""

    slot: Slot
    context: Context
    request: Request
    own_prompt: int
    """Prompt tokens that are new with this branch."""
    lead: tuple[int, ...] | None = None
    """Set while the model reasons: what follows the think block."""


def _written(completion: Completion, costs: TokenCounts, *, reasoning: str = "") -> Written:
    """Return a thought from its completion."""
    return Written(completion.text, reasoning, completion.finish_reason, costs, completion.logprobs)
