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

ALL, QUICK = "all", "quick"


def select(names: Sequence[str], *, only: str | None = None) -> list[Case]:
    """Return the cases of the named suites, in the order of the suites; ``quick`` is a few of each, tiny.

    Raises:
        InvalidParameter: there is no such suite, or no case whose name contains ``only``.
    """
    known = (*SUITES, ALL, QUICK)
    for name in names:
        if name not in known:
            raise InvalidParameter("suite", name, "one of " + ", ".join(known))
    if QUICK in names and len(names) > 1:
        raise InvalidParameter("suites", " ".join(names), "quick alone, or other suites without it")
    chosen = SUITES if {ALL, QUICK} & set(names) or not names else names
    cases = [case for name, make in SUITES.items() if name in chosen for case in make(quick=QUICK in names)]
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
