"""One search of a fixed size, as every implementation plays it: prompts, leads, the judge's question, seeds.

Every thought has its full length, no two nodes merge, and no answer is written: the number of nodes and of
tokens depends on the shape alone, so that implementations that draw other words still do the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pie_mlx.bench.texts import prompt_of
from pie_mlx.engine import Engine
from pie_mlx.errors import DeviceFailed
from pie_mlx.events import StepDone
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.search.dialogue import Dialogue
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.scoring.label import label_tokens
from pie_mlx.search.tasks.base import Judging, Task

_LABELS = {"good": 1.0, "fair": 0.5, "bad": 0.0}
_QUESTION = "\nAre these steps right, and do they help to answer the question? One word, good, fair or bad:"


@dataclass(frozen=True, slots=True)
class SearchShape:
    """What is searched, and how wide."""

    question_tokens: int
    breadth: int = 4
    beam: int = 2
    depth: int = 3
    thought_tokens: int = 48
    temperature: float = 0.7
    seed: int = 7

    @property
    def num_nodes(self) -> int:
        """Nodes below the root."""
        parents, nodes = 1, 0
        for _ in range(self.depth):
            nodes += parents * self.breadth
            parents = min(parents * self.breadth, self.beam)
        return nodes

    @property
    def name(self) -> str:
        """How the report calls it."""
        size = f"breadth {self.breadth}, beam {self.beam}, depth {self.depth}, {self.thought_tokens} tokens a thought"
        return f"question of {self.question_tokens:,} tokens, {size}"

    def params(self) -> SearchParams:
        """Return the parameters of our search."""
        return SearchParams(
            strategy="beam",
            scorer="label",
            breadth=self.breadth,
            beam=self.beam,
            depth=self.depth,
            max_tokens=self.thought_tokens,
            temperature=self.temperature,
            top_p=1.0,
            seed=self.seed,
            dedup=False,
            stop_first=False,
        )


State = tuple[str, ...]


class FixedTask(Task[State]):
    """A question whose search has a fixed size: any thought is a step, nothing stops one early."""

    name: ClassVar[str] = "bench"
    stop: ClassVar[tuple[str, ...]] = ()

    def __init__(self, question: str, depth: int) -> None:
        """Search ``depth`` levels below ``question``."""
        self._question = question
        self._depth = depth

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Take the question as it is."""
        return cls(question, 3)

    @property
    def question(self) -> str:
        """The question."""
        return self._question

    @property
    def depth(self) -> int:
        """Levels of the search."""
        return self._depth

    def prompt(self) -> str:
        """Return the question."""
        return self._question

    def start(self) -> State:
        """Return no thought."""
        return ()

    def lead(self, state: State) -> str:
        """Number the step."""
        return lead(len(state))

    def step(self, state: State, text: str) -> State:
        """Take any thought."""
        return (*state, text)

    def is_finished(self, state: State) -> bool:
        """Whether there are thoughts enough."""
        return len(state) >= self._depth

    def answer(self, state: State) -> str:
        """Return the last thought: no answer is written."""
        return state[-1]

    def judging(self, state: State) -> Judging:
        """Ask how well the steps serve the question."""
        return Judging(_QUESTION, _LABELS)


def lead(level: int) -> str:
    """Return what stands before the thought of a level, from 0."""
    return f"{chr(10) if level else ''}Step {level + 1}:"


@dataclass(frozen=True, slots=True)
class SearchPrompts:
    """A shape as tokens: what every implementation feeds."""

    shape: SearchShape
    task: FixedTask
    root: tuple[int, ...]
    leads: tuple[tuple[int, ...], ...]
    """Before the thought of each level."""
    question: tuple[int, ...]
    """Behind a node that is judged."""
    labels: tuple[int, ...]
    weights: tuple[float, ...]

    @classmethod
    def make(cls, shape: SearchShape, encoder: Tokenizer) -> Self:
        """Render the prompts for a model; the question's text has ``question_tokens`` tokens when cut."""
        task = FixedTask(encoder.decode(prompt_of(encoder, shape.question_tokens)), shape.depth)
        dialogue = Dialogue(encoder, system="", prompt=task.prompt())
        ending = label_tokens(encoder, _QUESTION, [f" {label}" for label in _LABELS])
        leads = tuple(tuple(dialogue.lead(lead(level))) for level in range(shape.depth))
        return cls(shape, task, dialogue.root, leads, ending.tail, ending.labels, tuple(_LABELS.values()))

    def value(self, probs: Sequence[float]) -> float:
        """Return the value that label probabilities mean."""
        mass = sum(probs)
        return sum(weight * prob for weight, prob in zip(self.weights, probs, strict=True)) / mass if mass else 0.0


@dataclass(frozen=True, slots=True)
class Searched:
    """What one search cost."""

    wall_s: float
    num_nodes: int
    prefill_tokens: int
    """Prompt tokens computed, recomputations included."""
    kv_bytes: int
    """K/V held at the widest moment."""
    result: SearchResult | None = None


def search(engine: Engine, prompts: SearchPrompts) -> Searched:
    """Search with our engine; the pages are read after every step.

    Raises:
        PieError: whatever ended the search before its end.
        DeviceFailed: the tree has not the size that it must have.
    """
    shape = prompts.shape
    before = _committed(engine)
    events = engine.listen()
    try:
        result = Run(engine, prompts.task, shape.params()).result()
        # Listeners get steps as they happened; none is lost once the run is over.
        steps = [event for event in events.drain() if isinstance(event, StepDone)]
    finally:
        events.close()
    if result.error is not None:
        raise result.error
    nodes = [node for node in result.nodes if node.depth > 0]
    if len(nodes) != shape.num_nodes or any(node.tokens != shape.thought_tokens for node in nodes):
        raise DeviceFailed(f"the search wrote {len(nodes)} of {shape.num_nodes} nodes, or not in full length")
    # The last token of a thought is computed with whatever follows it, and counts there.
    decoded = shape.num_nodes * (shape.thought_tokens - 1)
    committed = _committed(engine) - before
    held = max((step.pages.private + step.pages.shared for step in steps), default=0)
    page_bytes = engine.settings.page_size * engine.facts.kv_bytes_per_token
    return Searched(result.wall_s, len(nodes), committed - decoded, held * page_bytes, result)


def _committed(engine: Engine) -> int:
    """Return how many tokens the engine has computed since it started."""
    return engine.readings().counters.get("tokens_committed", 0)
