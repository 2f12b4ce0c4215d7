"""``pie-mlx info``: what a model is, and what it needs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pie_mlx.cli.figures import format_bytes, format_count
from pie_mlx.cli.options import EngineFlags, OutputFlags, load_config, model_name
from pie_mlx.errors import Fact, InvalidParameter

if TYPE_CHECKING:
    from pathlib import Path

    from pie_mlx.models.estimate import MemoryEstimate

SCHEMA = "pie-mlx.info/1"
_USUAL_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class _Machine:
    """What the estimate is held against."""

    device: str
    element_bytes: int
    total_bytes: int | None
    available_bytes: int | None


def info(
    name: Annotated[str | None, typer.Argument(help="Registry name, folder or GGUF file.", show_default=False)] = None,
    *,
    context: Annotated[int | None, typer.Option(help="Tokens of the sequence to estimate for.")] = None,
    engine: EngineFlags,
    output: OutputFlags,
) -> None:
    """Show a model, and the memory that it needs here."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.models.fetch import locate

    if context is not None and context < 1:
        raise InvalidParameter("--context", context, "1 or more")
    settings = load_config(engine, output).settings
    chosen = name or model_name(settings)
    facts = {"schema": SCHEMA, "name": chosen, **_card(locate(chosen), context, settings.page_size)}
    stdout = Stdout(settings.color)
    if output.json:
        stdout.json(facts)
    else:
        stdout.pairs(_lines(facts))


def _card(folder: Path, context: int | None, page_size: int) -> dict[str, Fact]:
    """Return what the model's files tell, and the estimate."""
    from pie_mlx.models.estimate import memory_needed
    from pie_mlx.models.folder import check_weights, context_tokens, read_config, read_optional_json

    config = read_config(folder)
    weights = sum(path.stat().st_size for path in check_weights(folder))
    limit = context_tokens(folder.name, config, read_optional_json(folder / "tokenizer_config.json"))
    tokens = min(context or _USUAL_TOKENS, limit)
    machine = _machine()
    need = memory_needed(config, weights, tokens, element_bytes=machine.element_bytes)
    return {
        "path": str(folder),
        "architecture": str(config.get("model_type")),
        "quantization": _quantization(config.get("quantization")),
        "context_tokens": limit,
        "device": machine.device,
        "estimate": _estimate_facts(need, page_size),
        "machine": {"total_bytes": machine.total_bytes, "available_bytes": machine.available_bytes},
        "fits": None if machine.available_bytes is None else need.total_bytes <= machine.available_bytes,
    }


def _machine() -> _Machine:
    """Describe this machine as the estimate sees it: the CPU backend keeps K and V as float32."""
    from pie_mlx import platform

    device, memory = platform.expected_device(), platform.memory()
    return _Machine(device, 2 if device == "metal" else 4, memory.total_bytes, memory.available_bytes)


def _quantization(table: object) -> Fact:
    """Return bits and group size; None where the weights are not quantized."""
    if not isinstance(table, dict):
        return None
    return {"bits": table.get("bits"), "group_size": table.get("group_size")}


def _estimate_facts(need: MemoryEstimate, page_size: int) -> dict[str, Fact]:
    """Return the estimate in bytes and pages."""
    return {
        "tokens": need.context_tokens,
        "weight_bytes": need.weight_bytes,
        "kv_bytes": need.kv_bytes,
        "working_bytes": need.working_bytes,
        "total_bytes": need.total_bytes,
        "page_size": page_size,
        "page_bytes": need.kv_bytes_per_token * page_size,
        "pages": -(-need.kept_tokens // page_size),
        "kept_tokens": need.kept_tokens,
        "attention_layers": len(need.layers),
        "window_layers": sum(layer.window_tokens is not None for layer in need.layers),
        "windowed_kv_bytes": need.windowed_kv_bytes,
    }


def _lines(facts: dict[str, Fact]) -> list[tuple[str, str]]:
    """Return the card as pairs of label and value."""
    need, machine, fits = facts["estimate"], facts["machine"], facts["fits"]
    assert isinstance(need, dict), "a card has an estimate"
    assert isinstance(machine, dict), "a card names the machine"
    verdict = {True: "yes", False: "no: too little memory is free now", None: "unknown"}
    pages, tokens = (format_count(_int(need[key])) for key in ("pages", "tokens"))
    page_bytes, kv_bytes = (format_bytes(_int(need[key])) for key in ("page_bytes", "kv_bytes"))
    free, total = (format_bytes(_int(machine[key])) for key in ("available_bytes", "total_bytes"))
    window = _window_words(need)
    return [
        ("model", str(facts["name"])),
        ("files", str(facts["path"])),
        ("architecture", str(facts["architecture"])),
        ("quantization", _quantization_words(facts["quantization"])),
        ("context", f"{format_count(_int(facts['context_tokens']))} tokens"),
        ("weights", format_bytes(_int(need["weight_bytes"]))),
        ("pages", f"{pages} of {page_bytes} for {tokens} tokens = {kv_bytes}"),
        *([("windows", window)] if window else []),
        ("working space", format_bytes(_int(need["working_bytes"]))),
        ("in all", format_bytes(_int(need["total_bytes"]))),
        ("this machine", f"{free} free of {total} ({facts['device']})"),
        ("fits", verdict[fits if isinstance(fits, bool) else None]),
    ]


def _window_words(need: dict[str, Fact]) -> str:
    """Say what becomes of pages that sliding layers do not see any more; empty where no layer slides."""
    layers, sliding = (_int(need[key]) or 0 for key in ("attention_layers", "window_layers"))
    if not sliding:
        return ""
    if sliding == layers:
        kept = format_count(_int(need["kept_tokens"]))
        return f"in every attention layer: pages behind them are given back, {kept} tokens are kept"
    alone = format_bytes(_int(need["windowed_kv_bytes"]))
    return f"in {sliding} of {layers} layers: pages are kept whole, as the others see all (windows alone: {alone})"


def _int(fact: Fact) -> int | None:
    """Return a whole number, None for anything else."""
    return fact if isinstance(fact, int) else None


def _quantization_words(fact: Fact) -> str:
    """Say how the weights are quantized."""
    return f"{fact['bits']}-bit, groups of {fact['group_size']}" if isinstance(fact, dict) else "none"
