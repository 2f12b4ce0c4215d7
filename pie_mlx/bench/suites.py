"""The suites by name, and how a selection of them is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pie_mlx.bench import decode, forks, prefill, pressure, trees, turns
from pie_mlx.bench.cases import Case
from pie_mlx.bench.report import Row
from pie_mlx.bench.setting import BenchSetting
from pie_mlx.errors import InvalidParameter

SUITES = {
    "decode": decode.cases,
    "prefill": prefill.cases,
    "fork": forks.cases,
    "tot": trees.cases,
    "pressure": pressure.cases,
    "chat": turns.cases,
}
"""Each makes its cases; with ``quick``, few and tiny ones."""

ALL, QUICK, CORE = "all", "quick", "core"

CORE_CASES = (
    "decode: 1 stream, 128-token",
    "decode: 1 stream, 1,024-token",
    "decode: 16 unrelated contexts",
    "decode: 16 branches of 512",
    "decode: 16 branches of 2,048",
    "prefill: prompt of 128 ",
    "prefill: prompt of 1,024 ",
    "fork: beside",
    "tot: prompts: question of 600 ",
    "tot: copies: question of",
    "pressure: 50%",
    "chat:",
)
"""How the titles of the cases begin that the project states figures of and that take minutes, not an hour."""


def select(names: Sequence[str], *, only: str | None = None) -> list[Case]:
    """Return the cases of the named suites, in the order of the suites.

    ``quick`` is a few of each, tiny; ``core`` those that the project states figures of.

    Raises:
        InvalidParameter: there is no such suite, or no case whose name contains ``only``.
    """
    known = (*SUITES, ALL, QUICK, CORE)
    for name in names:
        if name not in known:
            raise InvalidParameter("suite", name, "one of " + ", ".join(known))
    if {QUICK, CORE} & set(names) and len(names) > 1:
        raise InvalidParameter("suites", " ".join(names), "quick or core alone, or other suites without them")
    chosen = SUITES if {ALL, QUICK, CORE} & set(names) or not names else names
    cases = [case for name, make in SUITES.items() if name in chosen for case in make(quick=QUICK in names)]
    if CORE in names:
        cases = [case for case in cases if case.title.startswith(CORE_CASES)]
    if only is not None:
        cases = [case for case in cases if only.casefold() in case.title.casefold()]
        if not cases:
            raise InvalidParameter("--only", only, "a part of a case's name (pie-mlx bench --list shows them)")
    return cases


def run(setting: BenchSetting, cases: Sequence[Case], begin: Callable[[Case], None]) -> Iterator[Row]:
    """Measure the cases in turn; ``begin`` is told of each before it starts."""
    for case in cases:
        begin(case)
        yield from case.measure(setting)
