"""Exports: every format tells the run, none lets a text out of its place, none reaches for the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from pie_mlx.errors import UsageError
from pie_mlx.search.export import FORMATS, export
from pie_mlx.search.export.graphs import MAX_NODES
from pie_mlx.search.export.story import excerpt, tell
from pie_mlx.search.export.svg import lay_out
from pie_mlx.search.trace import Event, NodeDone, NodeStarted, Noticed, RunStarted, Scored, Trace, read_trace
from pie_mlx.search.tree import ROOT, NodeId, Score, child_id

Recorded = Callable[..., Trace]
RunEvents = Callable[..., list[Event]]

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> </style> <!-- ]]> & \" ' ` \\ ; --> [x](js:1)"
    ' %%{init}%% end"] click n0 \u202e\u2028\x00\x1b[31m \ud800 https://example.org/beacon'
)
SHOWN = HOSTILE.replace("\x00\x1b", "··").replace("\ud800", "?")


class _Page(HTMLParser):
    """Collects the elements and texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.texts.append(data)


def _page(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    page.close()
    return page


@pytest.fixture
def hostile(recorded: Recorded, run_events: RunEvents) -> Trace:
    """Return a run whose every text is an attack."""
    events = [RunStarted(question=HOSTILE, strategy=HOSTILE), *run_events(HOSTILE, HOSTILE)[1:]]
    return recorded(events)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_writes_any_trace(name: str, recorded: Recorded, hostile: Trace) -> None:
    """A whole run, a run without a node, one that was cut off, and a hostile one are all written."""
    traces = [
        recorded(),
        recorded([Noticed(text="nothing happened")]),
        recorded([RunStarted(question="q"), NodeStarted(node=ROOT)]),
        hostile,
    ]
    for trace in traces:
        text = export(trace, name)
        assert text.endswith("\n")
        text.encode("utf-8")


def test_an_unknown_format_is_answered_with_the_list(recorded: Recorded) -> None:
    """The error names every format, and the nearest one."""
    with pytest.raises(UsageError) as caught:
        export(recorded(), "htm")
    assert all(name in caught.value.message for name in FORMATS)
    assert caught.value.hint == "did you mean 'html'?"


def test_json_holds_the_tree_with_parent_links(recorded: Recorded) -> None:
    """Nodes, parents, scores, outcome and measures are there; a missing value is null."""
    run = json.loads(export(recorded(), "json"))
    nodes = {node["id"]: node for node in run["nodes"]}
    assert nodes["0.0.0"]["parent"] == "0.0"
    assert nodes["0.1"]["score"] is None
    assert nodes["0.0"]["scores"][0]["label_probs"] == {"sure": 0.5, "likely": 0.5}
    assert run["outcome"]["answer"] == "(6 - 4) * (4 + 8) = 24"
    assert run["best_path"] == ["0", "0.0", "0.0.0", "0.0.0.0"]
    assert run["metrics"]["peak_pages"] == 8


def test_the_page_asks_nothing_of_the_network(hostile: Trace) -> None:
    """No element has an address, the style fetches nothing, and the policy forbids all but the page's own parts."""
    text = export(hostile, "html")
    page = _page(text)
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form", "base", "a", "audio", "video"}
        assert not {"src", "href", "action", "data", "srcset", "poster", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    script = page.scripts[1]
    assert not re.search(r"fetch|XMLHttpRequest|WebSocket|sendBeacon|import\(|innerHTML|eval|document\.write", script)


def test_the_policy_allows_exactly_the_pages_own_style_and_script(recorded: Recorded) -> None:
    """The digests of the policy are those of the inline style and script."""
    text = export(recorded(), "html")
    policy = next(a["content"] for tag, a in _page(text).tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    for part in (style, _page(text).scripts[1]):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_hostile_text_stays_text_on_the_page(hostile: Trace) -> None:
    """There are two script elements whatever the model wrote; the data says it with control characters shown."""
    text = export(hostile, "html")
    page = _page(text)
    assert len(page.scripts) == 2
    assert "alert(1)" not in page.scripts[1]
    assert "<" not in page.scripts[0]
    nodes = json.loads(page.scripts[0])["nodes"]
    assert next(node["t"] for node in nodes if node["id"] == "0.0") == SHOWN
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text)


def test_the_page_shows_question_answer_path_and_curve_without_its_script(recorded: Recorded) -> None:
    """What matters most is in the static part."""
    text = export(recorded(), "html")
    shown = " ".join(_page(text).texts)
    for part in ("4 4 6 8", "(6 - 4) * (4 + 8) = 24", "2 * 12 = 24", "checked: right", "Prefill saved"):
        assert part in shown
    assert '<svg class="curve"' in text


def test_the_page_says_what_the_reader_must_know(recorded: Recorded) -> None:
    """Oracle use, an unfinished run and a torn line are told on the page."""
    trace = recorded([RunStarted(question="q", oracle=True), NodeStarted(node=ROOT)])
    trace.path.write_bytes(trace.path.read_bytes() + b'{"event":"no')
    text = export(read_trace(trace.path), "html")
    assert "oracle" in text
    assert "Not finished" in text
    assert "torn" in text


def test_svg_is_xml_whatever_the_texts(hostile: Trace) -> None:
    """The picture parses, and holds no script, link or foreign part."""
    root = ET.fromstring(export(hostile, "svg"))
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert names <= {"svg", "title", "style", "rect", "text", "tspan", "path", "g"}


def test_svg_places_no_two_nodes_of_a_level_on_each_other(recorded: Recorded) -> None:
    """Rows of one column are at least one apart, and a parent stands between its children."""
    story = tell(recorded(_wide_run(7, 3)))
    view = excerpt(story, 400)
    place = lay_out(view)
    columns: dict[float, list[float]] = {}
    for x, y in place.values():
        columns.setdefault(x, []).append(y)
    for rows in columns.values():
        ordered = sorted(rows)
        assert all(b - a >= 1 for a, b in pairwise(ordered))
    for node in view.nodes:
        rows = [place[child][1] for child in node.children]
        assert not rows or min(rows) <= place[node.id][1] <= max(rows)


def _wide_run(width: int, below: int) -> list[Event]:
    """Return a run of ``width`` thoughts with ``below`` thoughts each."""
    events: list[Event] = [RunStarted(question="q"), NodeStarted(node=ROOT), NodeDone(node=ROOT)]
    for i in range(width):
        here = child_id(ROOT, i)
        events += [NodeStarted(node=here), NodeDone(node=here, text=f"t{i}")]
        events.append(Scored(node=here, score=Score(i / width, "labels")))
        for j in range(below):
            events += [NodeStarted(node=child_id(here, j)), NodeDone(node=child_id(here, j), text=f"t{i}.{j}")]
    return events


@pytest.mark.parametrize("name", ["mermaid", "dot"])
def test_a_large_tree_is_cut_and_the_rest_is_counted(name: str, recorded: Recorded) -> None:
    """At most the cap is drawn, the best path among it, and drawn plus counted is all."""
    trace = recorded(_wide_run(300, 2))
    text = export(trace, name)
    label = re.compile(r'^  (n0[_0-9]*) ?\["?|^  (n0[_0-9]*) \[label="(?!\+)', re.MULTILINE)
    drawn = {match[1] or match[2] for match in label.finditer(text)} - {""}
    drawn = {one for one in drawn if not one.endswith("_")}
    hidden = sum(map(int, re.findall(r"\+(\d+) more", text)))
    assert len(drawn) == MAX_NODES
    assert len(drawn) + hidden == len(trace.tree())
    assert "n0_299" in drawn


def test_mermaid_labels_hold_only_letters_and_codes(hostile: Trace) -> None:
    """Nothing that means something to Mermaid is left in a label."""
    for label in re.findall(r'\["(.*)"\]', export(hostile, "mermaid")):
        bare = re.sub(r"#\d+;", "", label.replace("<br/>", ""))
        assert all(char.isalnum() or char in " +" for char in bare), label


def test_dot_strings_end_where_they_should(hostile: Trace) -> None:
    """Taking out the quoted strings leaves only DOT's own words."""
    text = export(hostile, "dot")
    bare = re.sub(r'"(?:\\.|[^"\\])*"', "S", text)
    assert "alert" not in bare
    assert bare.count('"') == 0


def test_speedscope_profiles_are_well_formed(recorded: Recorded) -> None:
    """Frames are nested, times do not run backwards, and weights add up to the tokens computed."""
    profile = json.loads(export(recorded(), "speedscope"))
    frames = profile["shared"]["frames"]
    tokens, *lanes = profile["profiles"]
    assert sum(tokens["weights"]) == tokens["endValue"] == 6 * 20 + 10
    assert all(frame < len(frames) for stack in tokens["samples"] for frame in stack)
    for lane in lanes:
        times = [event["at"] for event in lane["events"]]
        assert times == sorted(times)
        assert [event["type"] for event in lane["events"]] == ["O", "C"] * (len(times) // 2)
    assert sum(len(lane["events"]) for lane in lanes) == 2 * 7


def test_a_deep_chain_is_exported_without_recursion(recorded: Recorded) -> None:
    """Twelve hundred levels are written in every format."""
    events: list[Event] = [RunStarted(question="q")]
    node = ROOT
    for _ in range(1_200):
        events += [NodeStarted(node=node), NodeDone(node=node, text="deeper")]
        node = NodeId(child_id(node, 0))
    trace = recorded(events)
    for name in FORMATS:
        assert export(trace, name)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_builds_the_tree_and_runs_no_hostile_text(hostile: Trace, tmp_path: Path) -> None:
    """In headless Chromium the rows appear under the page's own policy, and the attack stays text."""
    path = tmp_path / "run.html"
    path.write_text(export(hostile, "html"), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += f" --disable-component-update --disable-sync --user-data-dir={tmp_path / 'profile'} --dump-dom"
    done = subprocess.run(
        ["chromium", *flags.split(), path.as_uri()], capture_output=True, encoding="utf-8", timeout=120, check=True
    )
    page = _page(done.stdout)
    rows = [attributes for tag, attributes in page.tags if tag == "div" and attributes.get("role") == "treeitem"]
    assert len(rows) == 7
    assert not any(tag == "img" for tag, _ in page.tags)
    assert "<script>alert(1)</script>" in " ".join(page.texts)
