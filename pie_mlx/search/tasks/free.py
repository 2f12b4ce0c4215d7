"""Any question: propose thoughts, judge them, and write the answer from the best ones. Nothing claims accuracy."""

from __future__ import annotations

from typing import ClassVar, Self

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.errors import TaskError
from pie_mlx.search.tasks.base import Judging, Rejected, Task, yes_or_no
from pie_mlx.search.trace_events import Verdict

State = tuple[str, ...]
"""The thoughts so far."""

_PROMPT = """\
{question}

Answer with a numbered list of {depth} short points, one line each. Then a summary in one sentence."""


class Free(Task[State]):
    """A question in the user's words."""

    name: ClassVar[str] = "free"
    summary: ClassVar[str] = "any question: propose, judge, write the answer; no check"
    system: ClassVar[str] = "You are a careful and concise assistant."

    def __init__(self, question: str, *, depth: int = 3) -> None:
        """Set the question.

        Raises:
            TaskError: the question is empty.
            InvalidParameter: the depth is below 1.
        """
        if not question.strip():
            raise TaskError("the question is empty", "pie-mlx tot run 'your question'")
        if depth < 1:
            raise InvalidParameter("depth", depth, "a whole number from 1 up")
        self._question = question.strip()
        self._depth = depth

    @classmethod
    def from_question(cls, question: str) -> Self:
        """Take the question as it is."""
        return cls(question)

    @property
    def question(self) -> str:
        """The question."""
        return self._question

    @property
    def depth(self) -> int:
        """Thoughts before the answer."""
        return self._depth

    def prompt(self) -> str:
        """Return the question, and the form that is asked for."""
        return _PROMPT.format(question=self._question, depth=self._depth)

    def start(self) -> State:
        """Return no thought."""
        return ()

    def lead(self, state: State) -> str:
        """Number the point: even small models go on with a list."""
        return f"{chr(10) if state else ''}{len(state) + 1}."

    def step(self, state: State, text: str) -> State | Rejected:
        """Take any thought that says something."""
        thought = " ".join(text.split())
        return (*state, thought) if thought else Rejected(Verdict.UNPARSED, "empty")

    def is_finished(self, state: State) -> bool:
        """Whether there are thoughts enough."""
        return len(state) >= self._depth

    def answer(self, state: State) -> str | None:
        """Leave the answer to :meth:`synthesis`."""
        del state
        return None

    def synthesis(self, state: State) -> str | None:
        """Ask for the answer."""
        del state
        return "\n\nIn summary,"

    def key(self, state: State) -> str:
        """Return the thoughts without case and spacing, so that equal ones merge."""
        return "\n".join(" ".join(thought.casefold().split()).rstrip(".") for thought in state)

    def judging(self, state: State) -> Judging:
        """Ask whether the points serve the question."""
        del state
        return yes_or_no("Is this a good answer?")
