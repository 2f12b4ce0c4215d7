"""Mermaid and DOT: text that other programs draw. Labels are escaped, and large trees are cut with a note."""

from __future__ import annotations

from pie_mlx.search.export.story import GLYPHS, Excerpt, Story, excerpt, label_of, one_line, value_text
from pie_mlx.search.node import Node, NodeId, NodeStatus

MAX_NODES = 150
"""More than that no renderer lays out legibly (and Mermaid refuses long texts)."""
MAX_LABEL_CHARS = 60

_FILLS: dict[NodeStatus, tuple[str, str]] = {
    NodeStatus.ACCEPTED: ("#d8f0dd", "#1b7f3b"),
    NodeStatus.DONE: ("#e3f1f4", "#0b7285"),
    NodeStatus.PRUNED: ("#f1f1f0", "#9a9a94"),
    NodeStatus.DUPLICATE: ("#f1f1f0", "#9a9a94"),
    NodeStatus.INVALID: ("#fbe9e7", "#b3422f"),
    NodeStatus.FAILED: ("#fbe9e7", "#b3422f"),
}
_PLAIN = ("#ffffff", "#52606d")
_DASHED = frozenset({NodeStatus.PRUNED, NodeStatus.DUPLICATE})


def _caption(story: Story, node: Node) -> tuple[str, str]:
    """Return a node's two lines: sign, id and value; text."""
    head = f"{GLYPHS[node.status]} {node.id}  {value_text(node)}".rstrip()
    return head, one_line(label_of(story, node), MAX_LABEL_CHARS)


def to_mermaid(story: Story) -> str:
    """Return a Mermaid flowchart."""
    view = excerpt(story, MAX_NODES)
    lines = ["flowchart TD"]
    lines += [f'  {_name(node.id)}["{_mermaid_label(story, node)}"]' for node in view.nodes]
    lines += [f'  {_name(parent)}_more["+{count} more"]' for parent, count in view.hidden.items()]
    edges = _edges(view)
    lines += [f"  {_name(parent)} --> {_name(child)}" for parent, child in edges]
    lines += [f"  {_name(parent)} -.-> {_name(parent)}_more" for parent in view.hidden]
    for status in NodeStatus:
        members = [_name(node.id) for node in view.nodes if node.status is status]
        if members:
            fill, stroke = _FILLS.get(status, _PLAIN)
            dash = ",stroke-dasharray:4 3" if status in _DASHED else ""
            lines.append(f"  classDef {status} fill:{fill},stroke:{stroke},color:#1f2933{dash}")
            lines.append(f"  class {','.join(members)} {status}")
    best = story.best_ids
    thick = [str(i) for i, (_, child) in enumerate(edges) if child in best]
    if thick:
        lines.append(f"  linkStyle {','.join(thick)} stroke:#1b7f3b,stroke-width:3px")
    return "\n".join(lines) + "\n"


def _name(node: NodeId) -> str:
    """Return an id that both languages take."""
    return "n" + node.replace(".", "_")


def _edges(view: Excerpt) -> list[tuple[NodeId, NodeId]]:
    return [(node.parent, node.id) for node in view.nodes if node.parent is not None]


def _mermaid_label(story: Story, node: Node) -> str:
    """Escape everything but letters, digits and blanks as character codes: no text can end the label or add markup."""
    head, text = _caption(story, node)
    return f"{_mermaid_text(head)}<br/>{_mermaid_text(text)}"


def _mermaid_text(text: str) -> str:
    return "".join(char if char.isalnum() or char == " " else f"#{ord(char)};" for char in text)


def to_dot(story: Story) -> str:
    """Return a DOT digraph."""
    view, best = excerpt(story, MAX_NODES), story.best_ids
    lines = [
        "digraph tot {",
        "  rankdir=TB;",
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=10, fontcolor="#1f2933"];',
        '  edge [color="#9aa5b1", arrowsize=0.6];',
    ]
    for node in view.nodes:
        fill, stroke = _FILLS.get(node.status, _PLAIN)
        style = "rounded,filled,dashed" if node.status in _DASHED else "rounded,filled"
        label = r"\n".join(_dot_text(line) for line in _caption(story, node))
        lines.append(
            f'  {_name(node.id)} [label="{label}", fillcolor="{fill}", color="{stroke}", style="{style}", '
            f"penwidth={2.5 if node.id in best else 1}];"
        )
    for parent, count in view.hidden.items():
        lines.append(f'  {_name(parent)}_more [label="+{count} more", style="rounded,dashed", color="#9a9a94"];')
        lines.append(f"  {_name(parent)} -> {_name(parent)}_more [style=dashed];")
    for parent, child in _edges(view):
        thick = ' [color="#1b7f3b", penwidth=2.5]' if child in best else ""
        lines.append(f"  {_name(parent)} -> {_name(child)}{thick};")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_text(text: str) -> str:
    """Escape what ends a quoted string or means something in a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
