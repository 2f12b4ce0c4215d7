"""Options that several commands share, as groups: a parameter annotated with a group stands for all its options.

A flag that was not given is None; its value then comes from the configuration (:mod:`pie_mlx.config`).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer
from typer.models import OptionInfo

from pie_mlx.cli.render import ColorWish

if TYPE_CHECKING:
    from pie_mlx import config
    from pie_mlx.engine import Engine, EngineSettings
    from pie_mlx.models.tokenizer import Tokenizer
    from pie_mlx.sampling import Sampling


class Color(StrEnum):
    """When to colour."""

    auto = "auto"
    always = "always"
    never = "never"


@dataclass(frozen=True)
class Group:
    """A group of options; its fields are the options."""

    panel: ClassVar[str] = "Options"

    def given(self) -> dict[str, object]:
        """Return the options by name; None where a flag was not given."""
        return {key: value.value if isinstance(value, Enum) else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class EngineFlags(Group):
    """What every command that runs a model takes."""

    panel: ClassVar[str] = "Engine"

    model: Annotated[str | None, typer.Option("--model", "-m", help="Registry name, folder or GGUF file.")] = None
    adapter: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="LoRA or DoRA adapter that mlx-lm trained for the model.")
    ] = None
    pool_pages: Annotated[int | None, typer.Option(help="Pages of the KV pool (default: by memory).")] = None
    pool_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the KV pool, such as 4GB; auto goes by what is free.")
    ] = None
    page_size: Annotated[int | None, typer.Option(help="Tokens per page: 8, 16, 32 or 64.")] = None
    max_batch: Annotated[int | None, typer.Option(help="Requests that run at the same time.")] = None
    prefill_chunk: Annotated[int | None, typer.Option(help="Prefill tokens per step.")] = None
    stall_timeout: Annotated[float | None, typer.Option(help="Seconds without progress until an alarm.")] = None
    offline: Annotated[bool | None, typer.Option("--offline/--online", help="Never use the network.")] = None

    def given(self) -> dict[str, object]:
        """Return the options by name, the pool's memory in bytes or auto.

        Raises:
            InvalidParameter: the memory is not a size.
        """
        from pie_mlx.config import parse_size

        size = None if self.pool_memory is None else parse_size("--pool-memory", self.pool_memory)
        return {**super().given(), "pool_memory": size}


@dataclass(frozen=True)
class SamplingFlags(Group):
    """How tokens are drawn."""

    panel: ClassVar[str] = "Sampling"

    max_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer at most.")] = None
    temp: Annotated[float | None, typer.Option("--temp", "-t", help="Temperature (default: 0, greedy).")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the smallest set of tokens with this probability.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.")] = None
    min_p: Annotated[float | None, typer.Option(help="Keep tokens this likely, as a share of the best.")] = None


@dataclass(frozen=True)
class OutputFlags(Group):
    """How the command speaks."""

    panel: ClassVar[str] = "Output"

    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False
    color: Annotated[Color | None, typer.Option(help="Colour; auto is: on a terminal, unless NO_COLOR is set.")] = None
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; log more.")] = False
    log_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the log goes (config path shows it).", show_default=False)
    ] = None

    def config_flags(self) -> dict[str, object]:
        """Return what of it is a setting."""
        return {"color": None if self.color is None else self.color.value, "log_file": self.log_file}


def expand_groups(command: Callable[..., object]) -> Callable[..., object]:
    """Let Typer see the options of a command's groups; the command itself gets the groups."""
    signature = inspect.signature(command)
    hints = typing.get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)}
    plain = [p.replace(annotation=hints[p.name]) for p in signature.parameters.values() if p.name not in groups]
    options = [option for group in groups.values() for option in _options_of(group)]

    @functools.wraps(command)
    def run(**values: object) -> object:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **filled)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*plain, *options)]
    for parameter in keyword_only:
        _name_its_value(parameter.annotation)
    run.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return run


def _options_of(group: type[Group]) -> list[inspect.Parameter]:
    """Return a parameter for each option of a group, under the group's heading in help."""
    hints = typing.get_type_hints(group, include_extras=True)
    found = []
    for field in fields(group):
        option = typing.get_args(hints[field.name])[1]
        option.rich_help_panel = group.panel
        found.append(
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
        )
    return found


_VALUES: tuple[tuple[type, str | None], ...] = (
    (bool, ""),
    (int, "N"),
    (float, "X"),
    (Path, "FILE"),
    (Enum, None),  # Typer lists the choices
    (str, "TEXT"),
)


def _name_its_value(annotation: object) -> None:
    """Let help say N, X, FILE or TEXT for an option's value, and nothing for a switch."""
    hint, *told = typing.get_args(annotation) or (None,)
    option = next((one for one in told if isinstance(one, OptionInfo)), None)
    if option is not None and option.metavar is None:
        kinds = list(_leaves(hint))
        option.metavar = next((word for base, word in _VALUES if any(issubclass(kind, base) for kind in kinds)), None)


def _leaves(hint: object) -> Iterator[type]:
    """Yield the plain types of a hint such as ``list[str] | None``."""
    inner = typing.get_args(hint)
    if inner:
        for one in inner:
            yield from _leaves(one)
    elif isinstance(hint, type):
        yield hint


def load_config(*groups: Group) -> config.Config:
    """Return the settings in force, with the flags of ``groups`` on top.

    Raises:
        ConfigError: a file or variable is wrong.
        InvalidParameter: a flag is outside its range.
    """
    from pie_mlx import config

    flags: dict[str, object] = {}
    for group in groups:
        flags |= group.config_flags() if isinstance(group, OutputFlags) else group.given()
    return config.load({key: value for key, value in flags.items() if key in config.Settings.model_fields})


def color_of(output: OutputFlags) -> ColorWish:
    """Return the colour wish of the flag, else of the configuration."""
    if output.color is not None:
        return output.color.value
    return load_config().settings.color


def engine_settings(settings: config.Settings) -> EngineSettings:
    """Return the engine's settings as the configuration has them; the watchdog reports into the state folder."""
    from pie_mlx.config import folder
    from pie_mlx.engine import EngineSettings

    return EngineSettings(
        pool_pages=settings.pool_pages,
        pool_memory_bytes=None if settings.pool_memory == "auto" else settings.pool_memory,
        page_size=settings.page_size,
        max_batch=settings.max_batch,
        prefill_chunk=settings.prefill_chunk,
        stall_timeout_s=settings.stall_timeout,
        report_dir=folder("state") / "reports",
    )


def model_name(settings: config.Settings) -> str:
    """Return the configured model, else the registry's default.

    Raises:
        ConfigError: the registry is wrong.
    """
    from pie_mlx.models.registry import load_registry

    return settings.model or load_registry().default_name


def with_model(settings: config.Settings, name: str) -> config.Settings:
    """Return the settings for another model: an adapter belongs to the one that it is configured with."""
    adapter = settings.adapter if name == model_name(settings) else None
    return settings.model_copy(update={"model": name, "adapter": adapter})


def sampling_of(settings: config.Settings, *, seed: int | None = None, num_logprobs: int = 0) -> Sampling:
    """Return the configured sampling; what is not configured is greedy, so that the same command gives the same answer.

    A thinking model repeats itself without end when greedy: it is sampled as its authors recommend. Without a seed,
    sampling that draws gets a new one each time.

    Raises:
        InvalidParameter: the seed or the number of log-probabilities is outside its range.
    """
    import secrets

    from pie_mlx.models.registry import RecommendedSampling, load_registry
    from pie_mlx.sampling import Sampling

    entry = load_registry().entries.get(model_name(settings))
    own = entry.sampling if entry is not None and entry.thinking else RecommendedSampling()
    temperature = own.temperature if settings.temp is None else settings.temp
    return Sampling(
        temperature=temperature,
        top_p=own.top_p if settings.top_p is None else settings.top_p,
        top_k=own.top_k if settings.top_k is None else settings.top_k,
        min_p=own.min_p if settings.min_p is None else settings.min_p,
        seed=seed if seed is not None else secrets.randbits(32) if temperature else 0,
        num_logprobs=num_logprobs,
    )


def open_engine(settings: config.Settings) -> Engine:
    """Load the configured model and start an engine on it.

    Raises:
        ModelError: the model or its adapter is missing or cannot be loaded.
    """
    import pie_mlx.open
    from pie_mlx.cli.live import publish

    engine = pie_mlx.open.open_engine(
        model_name(settings), engine_settings(settings), offline=settings.offline, adapter=settings.adapter
    )
    publish(engine)
    return engine


def tokenizer_of(engine: Engine) -> Tokenizer:
    """Return the engine's tokenizer."""
    from pie_mlx.models.tokenizer import Tokenizer

    assert isinstance(engine.codec, Tokenizer), "an engine on a model has the model's tokenizer"
    return engine.codec
