"""What a task is: how a problem is told to the model, how thoughts change its state, and how an answer is checked.

The model's text is one growing assistant message: the **lead** (written by the task), the thought (by the model or
from the list of legal moves), the next lead, and so on. A lead states what is true, such as the numbers that are
left, so nothing depends on what the model claims. Nothing is ever taken out of the message, so every child shares
all its parent's tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Self, TypeVar

from pie_mlx.search.errors import TaskError
from pie_mlx.search.trace_events import Verdict

StateT = TypeVar("StateT")
"""A task's state: immutable, and complete (nothing else is remembered of the path)."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why a thought is no step: ``verdict`` tells form (unparsed) from content (invalid)."""

    verdict: Verdict
    reason: str
    """A short code, such as ``wrong-numbers``."""


@dataclass(frozen=True, slots=True)
class Check:
    """What an exact checker says of an answer."""

    solved: bool
    value: float
    """1 where solved; a graded task gives part of it, 0 is nothing."""
    reason: str = "ok"
    """A short code."""


@dataclass(frozen=True, slots=True)
class Judging:
    """How a state is judged by label probabilities."""

    question: str
    """Asked in place of the next lead; the label follows after the task's :attr:`Task.gap`."""
    labels: Mapping[str, float] = field(default_factory=lambda: {"Yes": 1.0, "No": 0.0})
    """Word to weight; a state's value is Σ weight · p(word)."""


def yes_or_no(question: str, told: str = "") -> Judging:
    """Return a judging by Yes and No: what is ``told`` stands on a line of its own before the question.

    Models follow this form most. On the starter the labels take 0.43 of the mass over 20 thoughts of the ``free`` task
    and 0.85 over 164 states of ``game24``; ``One word, sure, likely or impossible:`` takes 0.07 there, and the question
    with ``(yes or no):`` at its end 0.09 to 0.11.
    """
    return Judging(f"{told and chr(10)}{told}\n\nQuestion: {question} Yes or No?\nAnswer:")


class Task(ABC, Generic[StateT]):
    """One problem to solve, with its rules.

    A user's own task is a subclass in a file of theirs. It must say :attr:`name`, :meth:`from_question`,
    :meth:`prompt`, :meth:`start`, :meth:`step`, :meth:`is_finished` and :meth:`answer`; the rest has defaults.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    """One line for the list of tasks."""
    splits: ClassVar[tuple[str, ...]] = ()
    """Names of the parts of its test set; empty where there is one part."""
    has_check: ClassVar[bool] = False
    """Whether :meth:`check` can tell right from wrong."""
    check_knows_answer: ClassVar[bool] = False
    """Whether :meth:`check` compares with the known answer: it then steers a search only with the oracle's leave."""
    has_legal_moves: ClassVar[bool] = False
    """Whether :meth:`legal_moves` lists all steps."""
    stop: ClassVar[tuple[str, ...]] = ("\n",)
    """What ends a thought."""
    gap: ClassVar[str] = " "
    """What stands between a lead, or a judging question, and the words that follow it."""
    system: ClassVar[str] = ""
    """The system message; empty is none."""

    @classmethod
    @abstractmethod
    def from_question(cls, question: str) -> Self:
        """Make the task from what the user typed.

        Raises:
            TaskError: the text does not state a problem of this kind.
        """

    @classmethod
    def generate(cls, seed: int, split: str | None = None) -> Self:
        """Make a problem of the test set: the same seed and split give the same one.

        Raises:
            TaskError: the task has no test set, or no such split.
        """
        raise TaskError(f"task {cls.name!r} has no test set: give it a question (seed {seed}, split {split})")

    @property
    @abstractmethod
    def question(self) -> str:
        """The problem in one line; :meth:`from_question` makes the same task of it."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Levels of a full solution, at least 1."""

    @abstractmethod
    def prompt(self) -> str:
        """Return the user's message: rules, an example where it helps, and the problem."""

    @abstractmethod
    def start(self) -> StateT:
        """Return the root's state."""

    def lead(self, state: StateT) -> str:
        """Return what the task writes before the next thought from ``state``."""
        return "" if state == self.start() else "\n"

    def legal_moves(self, state: StateT) -> list[str]:
        """Return every step from ``state`` as the text of a thought, each once, in a fixed order.

        Raises:
            TaskError: the task cannot list its steps.
        """
        raise TaskError(f"task {self.name!r} cannot list its legal moves (state {self.key(state)[:60]!r})")

    def plays(self, state: StateT) -> list[str]:
        """Return what random legal play draws from, evenly: the legal moves, each as often as it can be made."""
        return self.legal_moves(state)

    def chance(self, state: StateT) -> float | None:
        """Return the chance that random legal play solves the state, exactly; None where it is not known."""
        del state
        return None

    @abstractmethod
    def step(self, state: StateT, text: str) -> StateT | Rejected:
        """Parse a thought and apply it; the outcome is computed here, never read from what the text claims."""

    @abstractmethod
    def is_finished(self, state: StateT) -> bool:
        """Whether the state is a candidate for the answer that no step follows."""

    @abstractmethod
    def answer(self, state: StateT) -> str | None:
        """Return what a finished state answers, None where it answers nothing, or :meth:`synthesis` must write it."""

    def synthesis(self, state: StateT) -> str | None:
        """Return the lead after which the model writes the answer from the thoughts; None where none is written."""
        del state
        return None

    def key(self, state: StateT) -> str:
        """Return the state's key: equal keys are equal states; empty never merges."""
        del state
        return ""

    def answer_key(self, answer: str) -> str:
        """Return an answer in the form that votes compare."""
        return " ".join(answer.split()).casefold().rstrip(".")

    def check(self, answer: str) -> Check | None:
        """Check an answer exactly; None where the task cannot."""
        del answer
        return None

    def score(self, state: StateT) -> float | None:
        """Estimate a state without a model, from 0 to 1; None where the task cannot."""
        del state
        return None

    def oracle(self, state: StateT) -> bool | None:
        """Whether the state can still be solved, exactly; None where that is not known."""
        del state
        return None

    def judging(self, state: StateT) -> Judging:
        """Return how a judge is asked for the state's worth."""
        del state
        return yes_or_no("Can this lead to the right answer?")


def as_words(items: Sequence[object]) -> str:
    """Join with blanks."""
    return " ".join(map(str, items))


def refuse_split(task: type[Task[StateT]], split: str | None) -> None:
    """Refuse a split that the task does not have.

    Raises:
        TaskError: there is no such split.
    """
    if split is not None and split not in task.splits:
        known = ", ".join(task.splits) or "none: leave it out"
        raise TaskError(f"task {task.name!r} has no split {split!r} (it has {known})")
