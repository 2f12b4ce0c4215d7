"""One answer while it is written: reasoning, text and tool calls told apart, with log-probabilities beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pie_mlx.engine import Completion, Piece
from pie_mlx.models.reasoning import ReasoningSplitter, SplitText
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.server.tools import CallSplitter, SplitCalls, ToolCall


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was drawn, its log-probability, and the likeliest instead of it."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Delta:
    """What has become certain since the last time."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: list[TokenLogprob] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.text or self.reasoning or self.calls or self.tokens)

    def add(self, other: Delta) -> None:
        """Put another delta behind this one."""
        self.text += other.text
        self.reasoning += other.reasoning
        self.calls += other.calls
        self.tokens += other.tokens


class Writing:
    """One answer: deliveries in, deltas out; :attr:`whole` is all of it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        wants_logprobs: bool,
        is_chat: bool = True,
        starts_in_thinking: bool = False,
        calls: CallSplitter | None = None,
    ) -> None:
        """Begin an answer, whose calls ``calls`` reads; what is no chat (a raw completion) has no reasoning either."""
        self._reasoning = ReasoningSplitter(tokenizer.markers if is_chat else None, thinking=starts_in_thinking)
        self._calls = calls
        self._wants_logprobs = wants_logprobs
        self.whole = Delta()
        self.finish_reason: str | None = None

    def take(self, delivery: Piece | Completion) -> Delta:
        """Take what the engine delivered."""
        if isinstance(delivery, Completion):
            delta = self._end()
        else:
            delta = self._split(self._reasoning.push(delivery.text))
            if self._wants_logprobs:
                tops = delivery.top_logprobs or ((),) * len(delivery.tokens)
                pairs = zip(delivery.tokens, delivery.logprobs, tops, strict=True)
                delta.tokens = [TokenLogprob(token, logprob, top) for token, logprob, top in pairs]
        self.whole.add(delta)
        if isinstance(delivery, Completion):
            self.finish_reason = self._reason(delivery)
        return delta

    def _end(self) -> Delta:
        """Return what was held back."""
        delta = self._split(self._reasoning.finish())
        if self._calls is not None:
            rest = self._calls.finish()
            delta.text += rest.text
            delta.calls += rest.calls
        return delta

    def _split(self, split: SplitText) -> Delta:
        """Tell calls from text."""
        plain = SplitCalls(split.answer) if self._calls is None else self._calls.push(split.answer)
        return Delta(plain.text, split.reasoning, list(plain.calls))

    def _reason(self, done: Completion) -> str:
        """Return the protocol's word for why an answer ended; the model's context is a length too."""
        if self.whole.calls:
            return "tool_calls"
        return "stop" if done.finish_reason == "stop" else "length"
