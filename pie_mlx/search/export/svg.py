"""A picture of the tree: levels from left to right, each parent centred on its children, text beside its score."""

from __future__ import annotations

from textwrap import wrap
from xml.sax.saxutils import escape

from pie_mlx.search.export.story import GLYPHS, Excerpt, Story, excerpt, label_of, one_line, value_text
from pie_mlx.search.node import Node, NodeId, NodeStatus

MAX_NODES = 400
"""More do not fit a picture that anybody can read; the rest is counted."""
_CARD_W, _CARD_H, _GAP_X, _GAP_Y, _MARGIN, _HEAD = 230, 68, 40, 12, 28, 84
_LINE_CHARS, _LINES = 26, 2

_STYLE = """\
.bg{fill:#fbfaf8}.card{fill:#fff;stroke:#c9c5bd}.txt{fill:#23211d}.dim{fill:#716d65}.edge{stroke:#c9c5bd;fill:none}
.bar{fill:#0f766e}.track{fill:#e8e5df}.best .card{stroke:#0f766e;stroke-width:2}
.edge.best{stroke:#0f766e;stroke-width:2.5}
.off .card{stroke-dasharray:4 3}.off .txt{fill:#8b877f}.off .bar{fill:#a8a49b}.bad .card{stroke:#b3422f}
@media (prefers-color-scheme: dark){.bg{fill:#161513}.card{fill:#201f1c;stroke:#45423c}.txt{fill:#ece9e2}
.dim{fill:#a19c92}.edge{stroke:#45423c}.bar{fill:#2dd4bf}.track{fill:#37342f}
.best .card{stroke:#2dd4bf}.edge.best{stroke:#2dd4bf}
.off .txt{fill:#857f75}.off .bar{fill:#6b665d}.bad .card{stroke:#f08a76}}
text{font-family:ui-sans-serif,system-ui,sans-serif}"""


def lay_out(view: Excerpt) -> dict[NodeId, tuple[float, float]]:
    """Place the drawn nodes: column and row, a row for each leaf, a parent at the middle of its children.

    Two nodes of one column are never less than a row apart.
    """
    drawn, rows = view.ids, 0.0
    place: dict[NodeId, tuple[float, float]] = {}
    order = {node.id: [child for child in node.children if child in drawn] for node in view.nodes}
    for node in view.nodes:
        if not order[node.id]:
            place[node.id] = (float(node.depth), rows)
            rows += 1.0
    for node in sorted(view.nodes, key=lambda node: -node.depth):
        children = order[node.id]
        if children:
            middle = (place[children[0]][1] + place[children[-1]][1]) / 2
            place[node.id] = (float(node.depth), middle)
    return place


def to_svg(story: Story) -> str:
    """Return the tree as a standalone SVG; light and dark follow the reader's setting."""
    view = excerpt(story, MAX_NODES)
    place, best = lay_out(view), story.best_ids
    columns = max((x for x, _ in place.values()), default=0) + 1
    rows = max((y for _, y in place.values()), default=0) + 1
    width = int(2 * _MARGIN + columns * (_CARD_W + _GAP_X) - _GAP_X)
    height = int(_HEAD + _MARGIN + rows * (_CARD_H + _GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{_text(story.question, 200)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="bg" width="{width}" height="{height}"/>',
        f'<text class="txt" x="{_MARGIN}" y="36" font-size="20" font-weight="600">{_text(story.question, 76)}</text>',
        f'<text class="dim" x="{_MARGIN}" y="62" font-size="14">{_text(_subtitle(story, view), 160)}</text>',
    ]
    edges = sorted((node for node in view.nodes if node.parent is not None), key=lambda node: node.id in best)
    parts += [_edge(place, node, is_best=node.id in best) for node in edges]
    parts += [_card(story, node, _corner(place[node.id]), view.hidden.get(node.id, 0)) for node in view.nodes]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _subtitle(story: Story, view: Excerpt) -> str:
    outcome = story.tree.outcome
    ended = "not finished" if outcome is None else outcome.reason
    shown = f"{len(story.tree)} nodes"
    if len(view.nodes) < len(story.tree):
        shown = f"{len(view.nodes)} of {shown} drawn"
    return f"{story.header.task} · {story.header.model} · {shown} · {ended}"


def _corner(place: tuple[float, float]) -> tuple[float, float]:
    """Return a card's top left corner in pixels."""
    return _MARGIN + place[0] * (_CARD_W + _GAP_X), _HEAD + place[1] * (_CARD_H + _GAP_Y)


def _edge(place: dict[NodeId, tuple[float, float]], node: Node, *, is_best: bool) -> str:
    assert node.parent is not None
    (x1, y1), (x2, y2) = _corner(place[node.parent]), _corner(place[node.id])
    x1, y1, y2 = x1 + _CARD_W, y1 + _CARD_H / 2, y2 + _CARD_H / 2
    bend = (x1 + x2) / 2
    kind = "edge best" if is_best else "edge"
    return f'<path class="{kind}" d="M{x1:g} {y1:g}C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}"/>'


def _card(story: Story, node: Node, corner: tuple[float, float], hidden: int) -> str:
    x, y = corner
    kinds = ["node", str(node.status)]
    kinds += ["best"] if node.id in story.best_ids else []
    kinds += ["off"] if node.status in (NodeStatus.PRUNED, NodeStatus.DUPLICATE) else []
    kinds += ["bad"] if node.status in (NodeStatus.INVALID, NodeStatus.FAILED) else []
    bar = ""
    if node.value is not None:
        share = min(max(node.value, 0.0), 1.0)
        bar = (
            f'<rect class="track" x="{_CARD_W - 76}" y="52" width="64" height="5" rx="2"/>'
            f'<rect class="bar" x="{_CARD_W - 76}" y="52" width="{64 * share:.1f}" height="5" rx="2"/>'
        )
    more = f' <tspan class="dim">+{hidden} more</tspan>' if hidden else ""
    return (
        f'<g class="{" ".join(kinds)}" transform="translate({x:g} {y:g})">'
        f"<title>{_text(f'{node.id} · {node.status} · {label_of(story, node)}', 600)}</title>"
        f'<rect class="card" width="{_CARD_W}" height="{_CARD_H}" rx="8"/>'
        f'<text class="txt" font-size="14">{_lines(label_of(story, node))}</text>'
        f'<text class="dim" x="12" y="58" font-size="12">{GLYPHS[node.status]} {node.id}{more}</text>'
        f'<text class="dim" x="{_CARD_W - 84}" y="58" font-size="12" text-anchor="end">{value_text(node)}</text>'
        f"{bar}</g>"
    )


def _lines(text: str) -> str:
    """Return a label as the lines of a card, the last one cut where more follows."""
    lines = wrap(one_line(text, 400), _LINE_CHARS, max_lines=_LINES, placeholder=" …", break_on_hyphens=False) or [""]
    return "".join(f'<tspan x="12" y="{21 + 18 * at}">{escape(line)}</tspan>' for at, line in enumerate(lines))


def _text(text: str, limit: int) -> str:
    """Escape a text for XML; what XML cannot hold is shown as a dot."""
    return escape(one_line(text, limit))
