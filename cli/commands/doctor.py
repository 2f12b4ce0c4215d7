"""``pie-mlx doctor``: look at the machine, the installation and the model; ✓ ! ✗ with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from pie_mlx.cli.figures import format_bytes
from pie_mlx.cli.options import EngineFlags, OutputFlags, load_config, model_name, open_engine, tokenizer_of
from pie_mlx.errors import PieError

if TYPE_CHECKING:
    from rich.text import Text

    from pie_mlx.config import Settings
    from pie_mlx.engine import Engine
    from pie_mlx.models.tokenizer import Tokenizer

SCHEMA = "pie-mlx.doctor/1"
_LEAST_BYTES = 3_000_000_000
_PACKAGES = ("mlx", "mlx-lm", "numpy", "tokenizers", "rich", "textual", "typer")
_LABELS = ("Yes", "No", "True", "False")


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


MARKS = {Verdict.OK: ("✓", "green"), Verdict.WARNING: ("!", "yellow"), Verdict.FAILURE: ("✗", "bold red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    verdict: Verdict
    text: str
    fix: str | None = None


def doctor(*, engine: EngineFlags, output: OutputFlags) -> None:
    """Check the machine, the installation and the model; exit 1 where something does not work."""
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.cli.render import Stdout

    settings = load_config(engine, output).settings
    stdout = Stdout(settings.color)
    findings: list[Finding] = []
    with Stderr(settings.color).waiting("looking"):
        findings.extend(examine(settings))
    failed = any(finding.verdict is Verdict.FAILURE for finding in findings)
    if output.json:
        stdout.json({"schema": SCHEMA, "ok": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        stdout.show(*(line for finding in findings for line in _lines(finding)))
    if failed:
        raise typer.Exit(1)


def _lines(finding: Finding) -> Iterator[Text]:
    """Yield the lines of a finding."""
    from rich.text import Text

    from pie_mlx.cli.clean import one_line

    mark, style = MARKS[finding.verdict]
    yield Text.assemble((mark, style), f" {finding.name:<12} ", one_line(finding.text))
    if finding.fix is not None and finding.verdict is not Verdict.OK:
        yield Text.assemble("  try: ".rjust(15), one_line(finding.fix))


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what every check finds, from the machine up to a decoded token."""
    yield from _machine()
    yield from _versions()
    yield _donation()
    yield _building()
    yield _configuration()
    yield _log()
    try:
        engine = open_engine(settings)
    except PieError as error:
        yield Finding("model", Verdict.FAILURE, error.message, error.hint)
        return
    with engine:
        yield from _model(engine, settings)


def _machine() -> Iterator[Finding]:
    """Look at system, device, BLAS and memory."""
    from pie_mlx import platform

    facts = platform.prepare()
    yield Finding("machine", Verdict.OK, f"{facts.system} {facts.machine}, Python {facts.python}")
    if facts.device == "metal":
        yield Finding("device", Verdict.OK, "Metal GPU")
    else:
        text = f"CPU ({facts.dtype}); a GPU needs macOS on Apple Silicon"
        yield Finding("device", Verdict.WARNING, text, "expect a few tokens a second with larger models")
        if facts.blas is not None:
            yield Finding("BLAS", Verdict.OK, facts.blas)
    for warning in facts.warnings:
        yield Finding("BLAS", Verdict.WARNING, warning, "install OpenBLAS, or name a library in PIE_MLX_BLAS")
    memory = facts.memory
    wired = f", GPU working set {format_bytes(memory.working_set_bytes)}" if memory.working_set_bytes else ""
    text = f"{format_bytes(memory.available_bytes)} free of {format_bytes(memory.total_bytes)}{wired}"
    scarce = memory.available_bytes is not None and memory.available_bytes < _LEAST_BYTES
    fix = "close other programs, or set --pool-memory"
    yield Finding("memory", Verdict.WARNING if scarce else Verdict.OK, text, fix)


def _versions() -> Iterator[Finding]:
    """Look at the packages that the engine stands on."""
    from importlib.metadata import PackageNotFoundError, version

    from pie_mlx import __version__

    found, missing = [f"pie-mlx {__version__}"], []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    yield Finding("versions", Verdict.OK, ", ".join(found))
    if missing:
        text = f"not installed: {', '.join(missing)}"
        yield Finding("packages", Verdict.FAILURE, text, "install pie-mlx again, with its dependencies")


def _donation() -> Finding:
    """Whether a write to the arena happens in place, as decoding needs to be quick."""
    from pie_mlx.backend.mlx.arena import probe_donation

    if probe_donation():
        return Finding("arena", Verdict.OK, "a page is written in place")
    text = "a write copies the whole arena: decoding will be slow"
    return Finding("arena", Verdict.WARNING, text, "install the MLX version that pie-mlx pins")


def _building() -> Finding:
    """Whether the graph of the next step can be built while one runs."""
    from pie_mlx.backend.mlx.passes import ids_can_be_written

    if ids_can_be_written():
        return Finding("steps", Verdict.OK, "the next step can be built while one runs (done on a GPU)")
    text = "on a GPU the next step is built only when one has ended: small models decode slower"
    return Finding("steps", Verdict.WARNING, text, "install the MLX version that pie-mlx pins")


def _configuration() -> Finding:
    """Look at the model registry; the settings themselves have been read already."""
    from pie_mlx.models.registry import load_registry

    try:
        registry = load_registry()
    except PieError as error:
        return Finding("registry", Verdict.FAILURE, error.message, error.hint)
    return Finding("registry", Verdict.OK, f"{len(registry.entries)} models, default {registry.default_name}")


def _log() -> Finding:
    """Whether the log can be written."""
    from pie_mlx.cli.logfile import check_writable, log_path

    path = log_path()
    try:
        check_writable(path)
    except PieError as error:
        return Finding("log", Verdict.WARNING, error.message, "pie-mlx config set log_file FILE")
    return Finding("log", Verdict.OK, str(path))


def _model(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Look at the loaded model: pool, labels, one fork and one decoded token."""
    facts, pages = engine.facts, engine.readings().pages
    size = facts.kv_bytes_per_token * settings.page_size * pages.total
    yield Finding("model", Verdict.OK, f"{model_name(settings)} on {facts.device} ({facts.dtype})")
    how = engine.pool_size.reason
    if settings.pool_pages is None and not isinstance(settings.pool_memory, int):
        how = f"automatic: {how}"
    text = f"{pages.total:,} pages of {settings.page_size} tokens ({format_bytes(size)}), {how}"
    yield Finding("pool", Verdict.OK, text)
    yield _labels(tokenizer_of(engine))
    try:
        yield from _self_test(engine)
    except PieError as error:
        yield Finding("self-test", Verdict.FAILURE, error.message, error.hint)


def _labels(tokenizer: Tokenizer) -> Finding:
    """Whether the words that judge a thought begin with different tokens, as scoring needs."""
    first = {word: tokenizer.encode(f" {word}")[0] for word in _LABELS}
    words = ", ".join(f"{word} → {token}" for word, token in first.items())
    if len(set(first.values())) == len(first):
        return Finding("labels", Verdict.OK, words)
    return Finding("labels", Verdict.WARNING, f"labels share a first token: {words}", "use tot run --scorer logprob")


def _self_test(engine: Engine) -> Iterator[Finding]:
    """Fork a context and decode on both sides: the same tokens, no page left behind."""
    before = engine.readings().pages
    with engine.context(tokenizer_of(engine).prompt_ids("One, two, three, four, five, six, seven,")) as root:
        root.prefill().result()
        with root.fork() as fork:
            shared = fork.pages.shared
            ours, theirs = root.submit(max_tokens=4), fork.submit(max_tokens=4)
            same = ours.result().tokens == theirs.result().tokens
            speed = ours.result().decode_tps
    after = engine.readings().pages
    leaked = before.free - (after.free + after.cached - before.cached)
    alike = "both sides decode alike" if same else "its tokens differ from its parent's"
    text = f"a fork shares {shared} {'page' if shared == 1 else 'pages'}; {alike}"
    yield Finding("fork", Verdict.OK if same and shared else Verdict.FAILURE, text, "please report this")
    rate = "" if speed is None else f" at {speed:.0f} tok/s"
    yield Finding("decode", Verdict.OK, f"4 tokens{rate}")
    text = "every page came back" if leaked <= 0 else f"{leaked} pages did not come back"
    yield Finding("pages", Verdict.OK if leaked <= 0 else Verdict.FAILURE, text, "please report this")
