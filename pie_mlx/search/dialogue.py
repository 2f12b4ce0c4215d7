"""The search as a conversation: what the model reads before a thought, a judgement and an answer.

Every node's sequence is the rendered prompt followed by leads and thoughts, each line encoded by itself. A
sequence therefore depends on the texts alone: a node that is edited, resumed or recomputed has the tokens it
had, and siblings share every page but their own. A judging question continues the sequence, so a judgement
computes the question and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pie_mlx.errors import InvalidParameter
from pie_mlx.models.tokenizer import Message
from pie_mlx.search.scoring.base import LabelQuestion, Subject
from pie_mlx.search.scoring.label import label_tokens


@runtime_checkable
class TextModel(Protocol):
    """What a search needs of a tokenizer; :class:`pie_mlx.models.tokenizer.Tokenizer` is one."""

    @property
    def has_chat_template(self) -> bool:
        """Whether :meth:`render` works."""
        ...

    @property
    def think_markers(self) -> tuple[str, str] | None:
        """The texts around reasoning, None where the model does not reason in the open."""
        ...

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Encode text; control tokens only with ``special``."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids."""
        ...

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        """Render a conversation through the chat template."""
        ...


class Dialogue:
    """Turns prompts, leads and thoughts into tokens."""

    def __init__(self, model: TextModel, *, system: str, prompt: str, reasoning_tokens: int = 0) -> None:
        """Start the conversation with ``system`` (empty is none) and ``prompt``.

        Raises:
            InvalidParameter: reasoning is asked of a model that does not reason in the open.
            TemplateError: the chat template refuses the messages.
        """
        if reasoning_tokens and model.think_markers is None:
            raise InvalidParameter("reasoning_tokens", reasoning_tokens, "0 for a model that does not reason openly")
        self._model = model
        self._system = system
        self._memo: dict[str, tuple[int, ...]] = {}
        self.think_markers = model.think_markers if reasoning_tokens else None
        """Markers that thoughts are written behind; None where the model does not think first."""
        self.root = self.opening(prompt)
        """The rendered prompt, which all nodes share."""

    def opening(self, prompt: str) -> tuple[int, ...]:
        """Render one user turn and the start of the reply, outside any think block; plain text without a template."""
        system = [Message(role="system", content=self._system)] if self._system else []
        messages = [*system, Message(role="user", content=prompt)]
        if self._model.has_chat_template:
            return tuple(self._model.render(messages, thinking=False))
        return tuple(self._model.encode("".join(message["content"] + "\n\n" for message in messages)))

    def encode(self, text: str) -> tuple[int, ...]:
        """Encode plain text; the same text is encoded once."""
        known = self._memo.get(text)
        if known is None:
            known = self._memo[text] = tuple(self._model.encode(text))
        return known

    def marker(self, text: str) -> tuple[int, ...]:
        """Encode a think marker as the control token that it is."""
        return tuple(self._model.encode(text, special=True))

    def lead(self, lead: str) -> tuple[int, ...]:
        """Return the tokens that a thought is written behind: no blank at the end, tokenizers join it to the word."""
        return self.encode(lead.rstrip(" "))

    def line(self, lead: str, text: str) -> tuple[int, ...]:
        """Return the tokens of a lead and its thought."""
        return self.encode(join_line(lead, text))

    def label_question(self, subject: Subject, labels: Sequence[str], question: str) -> LabelQuestion:
        """Continue a node's sequence with ``question``; the label comes next.

        Raises:
            InvalidParameter: two labels start with the same token behind the question.
        """
        ending = label_tokens(self._model, question.rstrip(" "), [_spaced(question, label) for label in labels])
        return LabelQuestion(subject.tokens + ending.tail, ending.labels)

    def vote_question(self, subjects: Sequence[Subject], letters: Sequence[str], request: str) -> LabelQuestion:
        """Show candidates by letters after a common prompt and ask for the best one."""
        options = "\n\n".join(f"{letter}. {subject.text}" for letter, subject in zip(letters, subjects, strict=True))
        tail = "Best:"
        ending = label_tokens(self._model, tail, [f" {letter}" for letter in letters])
        return LabelQuestion(self.opening(f"{options}\n\n{request}") + ending.tail, ending.labels)


def join_line(lead: str, text: str) -> str:
    """Join a lead and a thought: a blank between them, unless the lead is empty or ends a line."""
    lead = lead.rstrip(" ")
    return lead + text if not lead or lead.endswith("\n") else f"{lead} {text}"


def _spaced(question: str, label: str) -> str:
    """Return a label as it follows a question."""
    return label if not question.strip(" ") or question.rstrip(" ").endswith("\n") else f" {label.strip()}"
