"""A report as one HTML file: inline charts, light and dark, no network and no script.

Every text of the report reaches the page escaped; a content security policy allows the page's own style alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from pie_mlx.bench.charts import ratio_chart, spark, width_chart

_SUITES = {
    "decode": ("Decode", "Tokens a second over all rows, after the first token of each."),
    "prefill": ("Prefill", "Tokens a second into an empty context."),
    "fork": ("Fork, close, truncate", "Bookkeeping on the real pool; shorter is better."),
    "tot": ("Tree of thought", "The same search end to end; the same prompts, nodes and tokens on both sides."),
    "pressure": ("Memory pressure", "The same search in a smaller pool, against one that holds everything."),
    "chat": ("Chat", "Time to the first token of a later turn."),
}
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def to_html(report: Mapping[str, Any]) -> str:
    """Return the page of a report in its JSON form."""
    style = (files("pie_mlx.bench") / "assets" / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    suites = list(dict.fromkeys(row["suite"] for row in report["rows"]))
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">',
        f"<title>{_text(report['settings']['model'])} · pie-mlx bench</title>",
        f"<style>{style}</style></head>",
        "<body><main>",
        _head(report),
        *(_section(suite, [row for row in report["rows"] if row["suite"] == suite]) for suite in suites),
        _raw(report),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _text(value: object) -> str:
    """Escape a value for the page; control characters become dots."""
    return escape("".join(c if c >= " " and not "\x7f" <= c <= "\x9f" else "·" for c in str(value)))


def _head(report: Mapping[str, Any]) -> str:
    """Return what was measured, where, and how."""
    machine, versions, settings = report["machine"], report["versions"], report["settings"]
    rival = f"beside {settings['baseline']} {versions.get('mlx-lm') or ''}" if settings["baseline"] else "alone"
    shown = [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"),
        ("device", f"{machine['device']} ({machine['dtype']}{', ' + machine['blas'] if machine.get('blas') else ''})"),
        ("reads", f"{_bytes(machine['read_bytes_per_s'])}/s measured"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("trials", f"{settings['trials']}, interleaved, {settings['warm_ups_dropped']} warm-up dropped"),
        ("decoding", f"{settings['decode_tokens']} tokens, {settings['sampling']}, end of sequence ignored"),
        ("prefix cache", "on" if settings["prefix_cache"] else "off"),
        ("pages", f"{settings['pool_pages']:,} of {settings['page_size']} tokens"),
        ("energy", machine.get("energy", "not measured")),
    ]
    facts = "".join(f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in shown)
    busy = ""
    if machine["load"] and machine["load"][0] > (machine["cores"] or 1) * 1.5:
        waiting = f"{machine['load'][0]} processes waited for {machine['cores']} cores"
        busy = f'<p class="note">The machine was busy: {waiting}.</p>'
    missing = report.get("unmeasured") or ()
    if missing:
        busy += f'<p class="note">Ended early: {len(missing)} cases are not measured, from {_text(missing[0])} on.</p>'
    return (
        f"<header><h1>{_text(settings['model'])}</h1>"
        f'<p class="lead">pie-mlx {_text(versions.get("pie-mlx"))} {_text(rival)}, in one process and one run. '
        f"A ratio is the median over pairs of trials; above 1× is better for pie-mlx.</p>"
        f'<dl class="facts">{facts}</dl>{busy}</header>'
    )


def _section(suite: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one suite: its charts and its table."""
    title, about = _SUITES.get(suite, (suite, ""))
    chart = f'<div class="panel">{ratio_chart(rows)}</div>' if any(row.get("ratio") for row in rows) else ""
    legend = '<p class="legend"><span class="key ours"></span>pie-mlx<span class="key theirs"></span>baseline</p>'
    body = "".join(map(_table_row, rows))
    return (
        f'<section><h2>{_text(title)}</h2><p class="lead">{_text(about)}</p>{_multiples(suite, rows)}{chart}'
        f'<div class="panel"><table><thead><tr><th>case</th><th>pie-mlx</th><th>baseline</th><th>ratio</th>'
        f"<th>K/V</th><th>peak memory</th><th>bandwidth used</th><th>trials</th></tr></thead>"
        f"<tbody>{body}</tbody></table></div>{legend}</section>"
    )


def _multiples(suite: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a chart over the number of rows for each family of decode cases that has three widths or more."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if suite == "decode" and row["facts"].get("rows", 1) > 1:
            families.setdefault(row["case"].partition(" ")[2], []).append(row)
    charts = [width_chart(f"{name}, tok/s by rows", some) for name, some in families.items() if len(some) > 2]
    return (
        f'<div class="multiples">{"".join(f"<div class=panel>{chart}</div>" for chart in charts)}</div>'
        if charts
        else ""
    )


def _table_row(row: Mapping[str, Any]) -> str:
    """Return one line of the table."""
    facts, ratio = row["facts"], row["ratio"]
    kind = "" if ratio is None else "better" if ratio >= 1 else "worse"
    theirs = row["baseline_trials"]
    notes = [f"{facts['prompt_tokens']:,} prompt tokens"] if "prompt_tokens" in facts else []
    notes += [str(facts["attention"])] if "attention" in facts else []
    if "equal_tokens" in facts:
        notes.append(f"{facts['equal_tokens']:.0%} of tokens equal")
    baseline = "–" if theirs is None else f"{_figure(row['baseline'])} {row['unit']}<small>{_span(theirs)}</small>"
    return (
        f'<tr><td class="case">{_text(row["case"])}<small>{_text(" · ".join(notes))}</small>'
        f"<small>{_text('' if theirs is None else 'against ' + str(row['baseline_name']))}</small></td>"
        f"<td>{_figure(row['ours'])} {_text(row['unit'])}<small>{_span(row['trials'])}</small></td>"
        f'<td>{baseline}</td><td class="{kind}">{"–" if ratio is None else f"{ratio:.2f}×"}</td>'
        f"<td>{_both(facts.get('kv_bytes'), facts.get('baseline_kv_bytes'))}</td>"
        f"<td>{_both(row.get('peak_bytes'), row.get('baseline_peak_bytes'))}</td>"
        f"<td>{_shares(facts.get('roofline_share'), facts.get('baseline_roofline_share'))}</td>"
        f"<td>{spark(row['trials'], theirs)}</td></tr>"
    )


def _raw(report: Mapping[str, Any]) -> str:
    """Return the whole report, for those who want to look again."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    return f"<details><summary>Raw report ({report['schema']})</summary><pre>{escape(text)}</pre></details>"


def _span(values: Sequence[float]) -> str:
    """Return the range of the trials."""
    return f"{_figure(min(values))}–{_figure(max(values))}"


def _figure(value: float) -> str:
    """Return a number with three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bytes(size: float | None) -> str:
    """Return bytes in the largest unit that fits."""
    if size is None:
        return "–"
    unit, name = next((found for found in _UNITS if size >= found[0]), (1, "B"))
    return f"{size / unit:.3g} {name}"


def _both(ours: float | None, theirs: float | None) -> str:
    """Return our bytes, and the baseline's below."""
    return _bytes(ours) if theirs is None else f"{_bytes(ours)}<small>{_bytes(theirs)}</small>"


def _shares(ours: float | None, theirs: float | None) -> str:
    """Return our share of the bandwidth, and the baseline's below."""
    if ours is None:
        return "–"
    return f"{ours:.0%}" if theirs is None else f"{ours:.0%}<small>{theirs:.0%}</small>"
