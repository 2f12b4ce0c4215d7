"""Groups of options: every flag reaches what it is for."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from pie_mlx.cli.commands.tot_run import BudgetFlags, SearchFlags
from pie_mlx.cli.options import (
    EngineFlags,
    OutputFlags,
    SamplingFlags,
    engine_settings,
    expand_groups,
    load_config,
    with_model,
)
from pie_mlx.config import Settings
from pie_mlx.search.params import SearchParams


def test_every_search_flag_is_a_search_parameter_and_none_is_missing() -> None:
    """A parameter that the search knows can be given, and no flag is lost on the way."""
    flags = {field.name for group in (SearchFlags, BudgetFlags) for field in fields(group)}
    assert flags == {field.name for field in fields(SearchParams)}


def test_every_engine_and_sampling_flag_is_a_setting() -> None:
    """What a flag can say, a file can say."""
    flags = {field.name for group in (EngineFlags, SamplingFlags) for field in fields(group)}
    assert flags <= set(Settings.model_fields)


def test_flags_reach_the_engine() -> None:
    """Each value is where the engine looks for it."""
    flags = EngineFlags(
        pool_memory="1MB", page_size=32, max_batch=3, prefill_chunk=5, stall_timeout=7.5, model="m", offline=True
    )
    settings = load_config(flags).settings
    made = engine_settings(settings)
    assert (made.pool_memory_bytes, made.pool_pages, made.page_size) == (1_000_000, None, 32)
    assert (made.max_batch, made.prefill_chunk, made.stall_timeout_s) == (3, 5, 7.5)
    assert (settings.model, settings.offline) == ("m", True)


def test_an_adapter_stays_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of model goes without the adapter, a variable's like a flag's; the way back has it again."""
    monkeypatch.setenv("PIE_MLX_ADAPTER", "a")
    settings = load_config(EngineFlags(model="m")).settings
    assert with_model(settings, "m").adapter == "a"
    assert (with_model(settings, "other").model, with_model(settings, "other").adapter) == ("other", None)


def test_auto_reaches_the_engine_as_the_automatic_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed as a flag it overrides a number that a weaker source gives."""
    monkeypatch.setenv("PIE_MLX_POOL_MEMORY", "1MB")
    assert engine_settings(load_config().settings).pool_memory_bytes == 1_000_000
    settings = load_config(EngineFlags(pool_memory="auto")).settings
    assert settings.pool_memory == "auto"
    assert engine_settings(settings).pool_memory_bytes is None


def test_a_group_becomes_its_options_and_comes_back_whole() -> None:
    """The command gets the group; the parser sees the options."""
    got: list[object] = []

    def command(word: str, *, output: OutputFlags) -> None:
        got.extend((word, output))

    expanded = expand_groups(command)
    assert set(inspect.signature(expanded).parameters) == {"word", "json", "color", "debug", "log_file"}
    expanded(word="w", json=True, color=None, debug=False, log_file=None)
    assert got == ["w", OutputFlags(json=True)]
