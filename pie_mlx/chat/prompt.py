"""From a path of turns to the tokens of a prompt, and the announced rule for a conversation that does not fit.

The rule: the oldest exchanges are left out, whole, until the rest fills half of the room; the system text and the
newest message always stay. Half, so that the prompt's beginning then stays the same for many turns and only new
tokens are prefilled. Nothing is deleted: the turns remain in the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pie_mlx.chat.errors import ConversationTooLong
from pie_mlx.chat.settings import ChatSettings
from pie_mlx.chat.turns import Turn, TurnId, exchanges
from pie_mlx.models.chat import RenderedChat
from pie_mlx.models.tokenizer import Message, Tokenizer


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a sequence may have, and where that comes from."""

    limit_tokens: int
    cause: str

    def for_prompt(self, max_tokens: int) -> int:
        """Return the tokens a prompt may have: a reply gets its ``max_tokens``, or at least a quarter of the room."""
        return max(1, self.limit_tokens - min(max_tokens, self.limit_tokens // 4))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt. ``first`` is the oldest message in it; ``num_left_out`` exchanges are not."""

    ids: tuple[int, ...]
    starts_in_thinking: bool
    notices: tuple[str, ...]
    first: TurnId
    num_left_out: int


class PromptMaker:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer, room: Room) -> None:
        """Render with ``tokenizer`` into ``room``."""
        self._tokenizer = tokenizer
        self.room = room

    def make(
        self, path: Sequence[Turn], *, system: str | None, settings: ChatSettings, first: TurnId | None = None
    ) -> Prompt:
        """Return the prompt for a path that ends in a message; ``first`` is where the prompt before this one began.

        Raises:
            TemplateError: the model's template refuses the messages.
            ConversationTooLong: it does not fit, and may not be (or is not made to fit by being) shortened.
        """
        messages = [pair for pair in exchanges(path) if pair[1] is None or pair[1].text]
        room = self.room.for_prompt(settings.max_tokens)
        whole = self._render(messages, system, settings)
        if len(whole.ids) <= room:
            return _prompt(whole, messages, 0)
        if settings.overflow == "refuse":
            raise ConversationTooLong(len(whole.ids), room, self._cause(room))
        at = next((index for index, (message, _) in enumerate(messages) if message.id == first), 0)
        if at > 0:
            shorter = self._render(messages[at:], system, settings)
            if len(shorter.ids) <= room:
                return _prompt(shorter, messages, at)
        return self._shortened(messages, system, settings)

    def _shortened(
        self, messages: list[tuple[Turn, Turn | None]], system: str | None, settings: ChatSettings
    ) -> Prompt:
        """Leave out the oldest exchanges until the rest fills half of the room; the newest message stays.

        Raises:
            ConversationTooLong: the newest message alone does not fit.
        """
        room = self.room.for_prompt(settings.max_tokens)
        low, high = 1, len(messages) - 1
        while low < high:
            middle = (low + high) // 2
            if len(self._render(messages[middle:], system, settings).ids) <= room // 2:
                high = middle
            else:
                low = middle + 1
        rest = self._render(messages[high:], system, settings)
        if len(rest.ids) > room:
            raise ConversationTooLong(len(rest.ids), room, self._cause(room))
        dropped = "the oldest exchange is" if high == 1 else f"the oldest {high} exchanges are"
        notice = (
            f"the context is full: {dropped} no longer sent to the model "
            f"(now {len(rest.ids):,} of {self.room.limit_tokens:,} tokens); they stay in the conversation"
        )
        prompt = _prompt(rest, messages, high)
        return Prompt(prompt.ids, prompt.starts_in_thinking, (*prompt.notices, notice), prompt.first, high)

    def _render(
        self, messages: Sequence[tuple[Turn, Turn | None]], system: str | None, settings: ChatSettings
    ) -> RenderedChat:
        """Render exchanges behind the system text. Reasoning is not sent back: models are trained without it."""
        rendered: list[Message] = [{"role": "system", "content": system}] if system else []
        for message, reply in messages:
            rendered.append({"role": "user", "content": message.text})
            if reply is not None:
                rendered.append({"role": "assistant", "content": reply.text})
        return self._tokenizer.chat(rendered, thinking=settings.wants_thinking)

    def _cause(self, room: int) -> str:
        """Say what the limit comes from."""
        return f"{self.room.cause}, of which {self.room.limit_tokens - room:,} are kept for the reply"


def _prompt(rendered: RenderedChat, messages: Sequence[tuple[Turn, Turn | None]], at: int) -> Prompt:
    return Prompt(rendered.ids, rendered.starts_in_thinking, rendered.notices, messages[at][0].id, at)


@dataclass(frozen=True, slots=True)
class TurnEnds:
    """What ends a reply besides the model's own end token: the marks that a template puts around other turns."""

    ids: frozenset[int]
    texts: tuple[str, ...]


def turn_ends(tokenizer: Tokenizer) -> TurnEnds:
    """Find the marks of a turn in the model's own template, so that no model can write the user's turn.

    Control tokens count where the template has any; a template that marks turns by plain text gives that text.
    """
    question, answer = "\u2461", "\u2462"
    said: list[Message] = [
        {"role": "user", "content": "\u2460"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    ]
    rendered = tokenizer.chat(said, add_generation_prompt=False)
    controls = frozenset(token for token in rendered.ids if not tokenizer.token_bytes(token))
    between = rendered.text.partition(answer)[2].partition(question)[0]
    marks = [line.strip() for line in between.splitlines() if line.strip()]
    texts = () if controls or not marks else (f"\n{marks[-1]}",)
    return TurnEnds(controls | tokenizer.eos_ids, texts)
