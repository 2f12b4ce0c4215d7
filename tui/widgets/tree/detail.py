"""Everything about one node: text, scores with their labels, siblings, tokens, pages, times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from pie_mlx.search.tree import Node, Score
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import LOCKED, LOOKS, value_text
from pie_mlx.tui.story import RunStory
from pie_mlx.tui.text import bar, clean_text, fit, one_line, seconds
from pie_mlx.tui.widgets.frame.line_view import inks_of

LOW_MASS = 0.2
_MAX_CHARS = 20_000
"""Characters of a text that are laid out; the rest is said to be there."""
_MAX_SIBLINGS = 12
_BAR_CELLS = 14


class Detail(VerticalScroll, can_focus=True):
    """The pane beside the tree."""

    DEFAULT_CSS: ClassVar[str] = "Detail { padding: 0 1; scrollbar-size-vertical: 1; } Detail Static { width: 1fr; }"

    def compose(self) -> ComposeResult:
        """One text."""
        yield Static(id="detail-text", markup=False)

    def show_node(self, node: Node | None, story: RunStory) -> None:
        """Show a node; None clears the pane."""
        text = Text() if node is None else describe_node(node, story, inks_of(self.app))
        self.query_one("#detail-text", Static).update(text)


def describe_node(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return everything that is known of a node; literal text, cleaned."""
    out = Text(no_wrap=False, overflow="fold")
    look = LOOKS[node.status]
    out.append(f"{look.glyph} {node.id} ", inks["strong"])
    out.append(node.status.value, inks[look.role])
    for word, holds in ((f"  {LOCKED} locked", node.locked), ("  ▸ frontier", node.selected)):
        out.append(word if holds else "", inks["accent"])
    out.append("\n")
    for part in (_reason(node, inks), _text(node, story, inks), _scores(node, story, inks)):
        out.append_text(part)
    out.append_text(_siblings(node, story, inks))
    out.append_text(_figures(node, story, inks))
    out.append_text(_way_here(node, story, inks))
    return out


def _section(name: str, inks: Inks) -> Text:
    """Return a heading."""
    return Text().append(f"\n{name}\n", inks["head"])


def _reason(node: Node, inks: Inks) -> Text:
    """Say why a node is not alive, and whose state it has."""
    out = Text()
    if node.reason:
        out.append(f"{one_line(node.reason)}\n", inks["warn"])
    if node.duplicate_of is not None:
        out.append(f"≡ the same state as {node.duplicate_of}\n", inks["warn"])
    return out


def _text(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return the thought in full, and the reasoning before it."""
    out = Text()
    if node.parent is None and story.tree.question:
        out.append_text(_section("question", inks)).append(_shown(story.tree.question), inks["text"]).append("\n")
    if node.reasoning:
        out.append_text(_section("reasoning", inks)).append(_shown(node.reasoning), inks["dim"]).append("\n")
    if node.text:
        out.append_text(_section("thought", inks)).append(_shown(node.text), inks["text"]).append("\n")
    return out


def _shown(text: str) -> str:
    """Return a text cleaned, at most as long as can be laid out at once."""
    shown = clean_text(text[:_MAX_CHARS])
    return shown if len(text) <= _MAX_CHARS else f"{shown}\n… {len(text) - _MAX_CHARS:,} characters more (y copies all)"


def _scores(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return each score with its labels' probabilities and mass; the one that ranks the node first."""
    out = Text()
    for at, score in enumerate(reversed(node.scores.values())):
        out.append_text(_section("score" if at == 0 else "earlier score", inks))
        out.append_text(_score(score, story, inks))
    return out


def _score(score: Score, story: RunStory, inks: Inks) -> Text:
    """Return one score."""
    out = Text()
    style = inks["warn"] if score.value is None else inks.heat(story.range.share(score.value))
    out.append(f"{value_text(score)} ", style + Style(bold=True)).append(one_line(score.kind), inks["text"])
    out.append(", taken from an equal state" if score.cached else "", inks["dim"]).append("\n")
    if score.error is not None:
        out.append(f"no value, the engine is to blame: {one_line(score.error)}\n", inks["bad"])
    elif score.value is None:
        out.append("no value: the verdict could not be read; it ranks last, it is not 0\n", inks["warn"])
    width = max((len(one_line(label, 12)) for label in score.label_probs), default=0)
    for label, probability in score.label_probs.items():
        out.append(f"  {one_line(label, 12):<{width}} ", inks["text"])
        out.append(f"{bar(probability, _BAR_CELLS):<{_BAR_CELLS}}", inks["info"])
        out.append(f" {probability:6.1%}\n", inks["text"])
    if score.mass is not None:
        low = score.mass < LOW_MASS
        words = f"  mass {score.mass:.1%} of the vocabulary" + (" ! low: the labels were hardly meant" if low else "")
        out.append(f"{words}\n", inks["warn"] if low else inks["dim"])
    return out


def _siblings(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return the node among its siblings."""
    if node.parent is None:
        return Text()
    siblings = story.tree[node.parent].children
    out = _section(f"siblings ({len(siblings)})", inks)
    at = siblings.index(node.id)
    first = max(0, min(at - _MAX_SIBLINGS // 2, len(siblings) - _MAX_SIBLINGS))
    for sibling_id in siblings[first : first + _MAX_SIBLINGS]:
        sibling = story.tree[sibling_id]
        look = LOOKS[sibling.status]
        out.append("❯ " if sibling is node else "  ", inks["accent"])
        out.append(f"{look.glyph} ", inks[look.role]).append(f"{value_text(sibling.score):>5} ", inks["text"])
        words = one_line(sibling.text, 60) or f"{sibling.id} {sibling.status.value}"
        out.append(f"{fit(words, 25).rstrip()}\n", inks["dim"])
    return out


def _figures(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return tokens, pages, times and the seed."""
    out = _section("figures", inks)
    for name, words in _facts(node, story):
        out.append(f"  {name:<7} ", inks["dim"]).append(f"{words}\n", inks["text"])
    return out


def _facts(node: Node, story: RunStory) -> Iterator[tuple[str, str]]:
    """Yield names and values."""
    tokens, pages = node.tokens, node.pages
    if tokens.prompt or tokens.completion:
        hit = f" ({tokens.cached / tokens.prompt:.0%})" if tokens.prompt else ""
        yield "tokens", f"{tokens.completion} written"
        yield "prompt", f"{tokens.prompt}, {tokens.cached} cached{hit}"
    if pages.total:
        yield "pages", f"{pages.total - pages.shared} own, {pages.shared} shared"
    span = story.spans.get(node.id)
    if span is not None:
        end = story.t_ns if span.done_ns is None else span.done_ns
        took = (end - span.started_ns) / 1e9
        length = "still written" if span.done_ns is None else f"took {seconds(took)}"
        if span.done_ns == span.started_ns:
            length = "by hand"
        yield "time", f"at {span.started_ns / 1e9:.2f} s, {length}"
        if span.done_ns is not None and took > 0 and tokens.completion:
            yield "speed", f"{tokens.completion / took:.0f} tok/s"
    if node.finish:
        yield "finish", node.finish
    if node.children:
        yield "below", f"{len(node.children)} children"
    if node.key:
        yield "state", one_line(node.key, 60)
    yield "seed", str(node.seed)


def _way_here(node: Node, story: RunStory, inks: Inks) -> Text:
    """Return the thoughts above, which are the prompt that this one was written after."""
    above = story.tree.path(node.id)[:-1]
    out = Text()
    if not above:
        return out
    out.append_text(_section("the way here", inks))
    for step in above:
        out.append(f"  {step.id} ", inks["dim"])
        out.append(f"{one_line(step.text or story.tree.question, 200)}\n", inks["text"])
    return out
