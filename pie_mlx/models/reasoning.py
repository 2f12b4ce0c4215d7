"""Tell a model's reasoning from its answer, in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """The texts around a model's reasoning."""

    opening: str
    closing: str
    dropped: tuple[str, ...] = ()
    """Markers that are neither reasoning nor answer, and are not shown."""

    @property
    def pair(self) -> tuple[str, str]:
        """The opening and the closing marker."""
        return self.opening, self.closing

    @property
    def texts(self) -> tuple[str, ...]:
        """Every marker."""
        return self.opening, self.closing, *self.dropped


KNOWN_MARKERS = (
    ThinkMarkers("<think>", "</think>"),
    ThinkMarkers("<longcat_think>", "</longcat_think>"),
    ThinkMarkers("<|think:start|>", "<|think:end|>"),
    ThinkMarkers("<|channel>thought", "<channel|>"),
    ThinkMarkers(
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        dropped=("<|channel|>final<|message|>",),
    ),
)
"""The markers of the models that reason in the open."""


def starts_in_thinking(rendered: str, markers: ThinkMarkers | None) -> bool:
    """Whether a rendered prompt ends inside reasoning: its last opening marker is not closed again."""
    if markers is None:
        return False
    return rendered.rfind(markers.opening) > rendered.rfind(markers.closing)


@dataclass(frozen=True, slots=True)
class SplitText:
    """A piece of model text, told apart."""

    reasoning: str = ""
    answer: str = ""


class ReasoningSplitter:
    """Splits streamed text into reasoning and answer; a marker may arrive in any number of pieces."""

    def __init__(self, markers: ThinkMarkers | None, *, thinking: bool = False) -> None:
        """Start in the answer, or with ``thinking`` inside the reasoning (the prompt opened it)."""
        self._markers = markers
        self._thinking = thinking
        self._held = ""
        self._fresh = thinking

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside the reasoning: the answer may then be empty."""
        return self._thinking

    def push(self, text: str) -> SplitText:
        """Take the next piece; return what is certain. A possible part of a marker is held back."""
        return self._split(self._held + text, final=False)

    def finish(self) -> SplitText:
        """Return what was held back: the text ended, so it was no marker."""
        return self._split(self._held, final=True)

    def _split(self, text: str, *, final: bool) -> SplitText:
        if self._markers is None:
            return SplitText(answer=text)
        pieces: tuple[list[str], list[str]] = ([], [])
        while (found := first_to_end(text, self._markers.texts)) is not None:
            at, marker = found
            pieces[self._thinking].append(self._trimmed(text[:at]))
            self._thinking = marker == self._markers.opening
            self._fresh = True
            text = text[at + len(marker) :]
        keep = 0 if final else held_back(text, self._markers.texts)
        self._held = text[len(text) - keep :]
        pieces[self._thinking].append(self._trimmed(text[: len(text) - keep]))
        return SplitText(reasoning="".join(pieces[True]), answer="".join(pieces[False]))

    def _trimmed(self, text: str) -> str:
        """Drop the white space that follows a marker: it belongs to the marker's line."""
        if not self._fresh:
            return text
        text = text.lstrip()
        self._fresh = not text
        return text


def split_reasoning(text: str, markers: ThinkMarkers | None, *, thinking: bool = False) -> SplitText:
    """Split a whole text into reasoning and answer."""
    splitter = ReasoningSplitter(markers, thinking=thinking)
    return _join(splitter.push(text), splitter.finish())


def _join(first: SplitText, second: SplitText) -> SplitText:
    return SplitText(first.reasoning + second.reasoning, first.answer + second.answer)


def find_markers(has_token: Callable[[str], bool], template: str | None) -> ThinkMarkers | None:
    """Return the markers a model uses: those its vocabulary holds, or those its template writes."""
    for markers in KNOWN_MARKERS:
        if has_token(markers.opening) and has_token(markers.closing):
            return markers
        if template is not None and markers.opening in template and markers.closing in template:
            return markers
    if has_token("<|channel|>") and has_token("<|message|>") and has_token("<|start|>"):
        return KNOWN_MARKERS[-1]
    if has_token("<|channel>") and has_token("<channel|>"):
        return KNOWN_MARKERS[-2]
    return None


def first_to_end(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Return place and text of the marker that is complete first, the longest where two end together.

    The first to end, not the first to begin: so the result does not depend on how the text was cut.
    """
    found = [(text.find(marker) + len(marker), -len(marker), marker) for marker in markers if marker in text]
    if not found:
        return None
    end, _, marker = min(found)
    return end - len(marker), marker


def held_back(text: str, markers: Sequence[str]) -> int:
    """Return how many last characters of ``text`` may be the beginning of one of ``markers``."""
    longest = min(len(text), max((len(marker) for marker in markers), default=1) - 1)
    for size in range(longest, 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0
