"""A run as one HTML file: no network, no dependency, light and dark.

Text of the model reaches the page in two ways, both inert: escaped into the static part, and as JSON whose ``<`` is
escaped, which the script puts on the page as text only. A content security policy allows nothing but the page's own
style and script, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

from pie_mlx.errors import Fact
from pie_mlx.search.export.curve import page_curve
from pie_mlx.search.export.story import GLYPHS, Story, label_of, value_text
from pie_mlx.search.node import ROOT, Node, NodeStatus

_ENDINGS = {
    "answer": ("good", "★", "Answered"),
    "unsolved": ("bad", "✗", "Unsolved"),
    "budget": ("warn", "!", "Budget spent"),
    "starved": ("bad", "!", "Starved of pages"),
    "cancelled": ("warn", "■", "Cancelled"),
    "failed": ("bad", "!", "Failed"),
}


def to_html(story: Story) -> str:
    """Return the page."""
    style, script = _asset("page.css"), _asset("page.js")
    own = f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    return (
        "\n".join(
            [
                "<!doctype html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">',
                '<meta name="referrer" content="no-referrer">',
                f"<title>{_clean(_title(story))}</title>",
                f"<style>{style}</style>",
                "</head>",
                "<body>",
                "<main>",
                _head(story),
                _outcome(story),
                _figures(story),
                _best_path(story),
                _pages(story),
                _tree(story),
                "</main>",
                f'<script type="application/json" id="run">{_embedded(story)}</script>',
                f"<script>{script}</script>",
                "</body>",
                "</html>",
            ]
        )
        + "\n"
    )


def _asset(name: str) -> str:
    return (files("pie_mlx.search.export") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the digest under which the policy allows an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _title(story: Story) -> str:
    return f"{story.question or story.header.run} · pie-mlx"


def _visible(text: str) -> str:
    """Return a text as a page may hold it: control characters become ``·``, lone surrogates ``?``."""
    shown = "".join(c if c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") else "·" for c in text)
    return shown.encode("utf-8", "replace").decode("utf-8")


def _clean(text: str) -> str:
    """Escape a text for the static part of the page."""
    return escape(_visible(text))


def _head(story: Story) -> str:
    """Return the question and what was run."""
    header, start = story.header, story.start
    facts = [("task", header.task), ("model", header.model)]
    if start is not None:
        facts += [("strategy", start.strategy), ("scorer", start.scorer)]
    facts.append(("seed", str(header.seed)))
    chips = "".join(f"<div><dt>{name}</dt><dd>{_clean(value)}</dd></div>" for name, value in facts if value)
    oracle = ""
    if start is not None and start.oracle:
        oracle = '<p class="note warn">The task’s exact labels steered this search (oracle).</p>'
    torn = '<p class="note warn">The last line of the trace was torn and left out.</p>' if story.torn else ""
    return (
        f'<header><p class="kicker">Tree of thought</p><h1>{_clean(story.question or story.header.run)}</h1>'
        f'<dl class="chips">{chips}</dl>{oracle}{torn}</header>'
    )


def _outcome(story: Story) -> str:
    """Return how it ended."""
    outcome = story.tree.outcome
    if outcome is None:
        kind, glyph, word = ("warn", "…", "Not finished")
    else:
        kind, glyph, word = _ENDINGS.get(outcome.reason, ("warn", "!", outcome.reason))
    verdict = ""
    if outcome is not None and outcome.solved is not None:
        verdict = " · checked: right" if outcome.solved else " · checked: wrong"
        kind = "bad" if kind == "good" and not outcome.solved else kind
    answer = "" if outcome is None or outcome.answer is None else f'<div class="answer">{_clean(outcome.answer)}</div>'
    error = "" if outcome is None or outcome.error is None else f'<p class="note bad">{_clean(outcome.error)}</p>'
    alarms = "".join(f'<p class="note warn">{_clean(alarm)}</p>' for alarm in story.tree.alarms[:20])
    return (
        f'<section class="outcome {kind}"><p class="ending"><span class="glyph">{glyph}</span> {word}{verdict}</p>'
        f"{answer}{error}{alarms}</section>"
    )


def _figures(story: Story) -> str:
    """Return the measures."""
    m = story.metrics
    rows: list[tuple[str, str, str]] = [
        ("Nodes", f"{m.num_nodes:,}", f"{m.num_expanded:,} expanded · {m.num_pruned:,} pruned"),
        ("Tokens written", f"{m.tokens.completion:,}", _per_second(m.tokens_per_s)),
        ("Prefill saved", _percent(m.prefill_saved), f"{m.tokens.cached:,} of {m.tokens.prompt:,} prompt tokens"),
        ("Time", f"{m.wall_s:.1f} s", f"{m.num_calls:,} model calls"),
    ]
    if m.peak_pages is not None:
        shared = "" if m.sharing_at_peak is None else f"each shared {m.sharing_at_peak:.1f}× · "
        rows.append(("Peak pages", f"{m.peak_pages:,}", f"{shared}{m.freed_pages:,} freed by pruning"))
    if m.unparsed_share is not None and m.invalid_share is not None:
        unusable = m.unparsed_share + m.invalid_share
        rows.append(("Not a step", _percent(unusable), f"{_percent(m.unparsed_share)} of all unparsed"))
    cells = "".join(
        f'<div><dt>{name}</dt><dd>{number}</dd><dd class="sub">{sub}</dd></div>' for name, number, sub in rows
    )
    return f'<dl class="figures">{cells}</dl>'


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _per_second(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f} a second"


def _best_path(story: Story) -> str:
    """Return the best path as a list, readable without the script."""
    if not story.best_path:
        return ""
    steps = "".join(_step(story, node) for node in story.best_path[1:200])
    name = "Path to the answer" if story.tree.best() is not None else "Best path so far"
    return f'<section><h2>{name}</h2><ol class="path">{steps}</ol></section>' if steps else ""


def _step(story: Story, node: Node) -> str:
    value = value_text(node)
    score = f'<span class="value">{value}</span>' if value else ""
    body = f'<span class="text">{_clean(label_of(story, node))}</span>'
    return f'<li class="{node.status}"><span class="id">{node.id}</span>{body}{score}</li>'


def _pages(story: Story) -> str:
    """Return the page curve with its legend."""
    curve = page_curve(story)
    if not curve:
        return ""
    legend = (
        '<p class="legend"><span class="key private"></span>private <span class="key shared"></span>shared '
        '<span class="key viewed"></span>viewed: what it would take without sharing <span class="key prune">▲</span>'
        "pruned</p>"
    )
    return f"<section><h2>Pages</h2>{curve}{legend}</section>"


def _tree(story: Story) -> str:
    """Return the frame that the script fills."""
    counts = story.tree.counts()
    options = "".join(
        f'<option value="{status}">{GLYPHS[status]} {status} ({counts[status]:,})</option>'
        for status in NodeStatus
        if status in counts
    )
    return f"""<section><h2>Tree</h2>
<div class="tools">
<input type="search" id="find" placeholder="Search thoughts" aria-label="Search thoughts" autocomplete="off">
<select id="status" aria-label="Only this status"><option value="">any status</option>{options}</select>
<button type="button" id="best">Best path</button>
<button type="button" id="open">Expand all</button>
<button type="button" id="close">Collapse all</button>
<span id="hits" role="status"></span>
</div>
<div id="tree" role="tree" aria-label="Search tree" tabindex="0"></div>
<noscript><p class="note warn">The tree needs the page’s own script; the path above does not.</p></noscript>
</section>"""


def _embedded(story: Story) -> str:
    """Return the nodes as JSON that cannot end its script element."""
    best = story.best_ids
    nodes: list[Fact] = [_row(story, node, is_best=node.id in best) for node in story.tree.walk()]
    facts: dict[str, Fact] = {"nodes": nodes, "glyphs": {status.value: glyph for status, glyph in GLYPHS.items()}}
    text = json.dumps(facts, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _row(story: Story, node: Node, *, is_best: bool) -> dict[str, Fact]:
    """Return what a row and its detail show; empty fields are left out."""
    score = node.score
    row: dict[str, Fact] = {
        "id": node.id,
        "d": node.depth,
        "s": node.status.value,
        "t": _visible(label_of(story, node)),
        "full": _visible(node.text) if node.id == ROOT and story.question else "",
        "n": len(node.children),
        "best": is_best,
        "why": _visible(node.reason),
        "think": _visible(node.reasoning),
        "dup": node.duplicate_of,
        "lock": node.locked,
        "fin": node.finish,
        "tok": [node.tokens.prompt, node.tokens.cached, node.tokens.completion] if node.tokens.prompt else None,
        "pg": [node.pages.total, node.pages.shared] if node.pages.total else None,
        "v": None if score is None else score.value,
        "asked": score is not None,
        "scores": [one.to_json() for one in node.scores.values()],
    }
    kept = {"id", "d", "s", "t"}
    if row["v"] is not None:
        kept.add("v")
    return {name: value for name, value in row.items() if name in kept or value}
