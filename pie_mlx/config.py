"""Settings: flag > ``PIE_MLX_*`` > ``./pie-mlx.toml`` > the user's file > default, each value with its origin.

An unknown key, a wrong type or a value outside its range is a :class:`pie_mlx.errors.ConfigError` that names the
file, the line and the nearest key. The four folders below are where the program keeps its files; each can be moved
with a variable of its own (``PIE_MLX_CONFIG_DIR``, ``PIE_MLX_STATE_DIR``, ``PIE_MLX_DATA_DIR``, ``PIE_MLX_CACHE_DIR``).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pie_mlx.errors import ConfigError, InvalidParameter, UsageError

PROJECT_FILE = Path("pie-mlx.toml")
"""The project's file, in the working folder."""
_PREFIX = "PIE_MLX_"
_FOLDER_KINDS = ("config", "state", "data", "cache", "runtime")
_OTHER_VARIABLES = frozenset({f"{_PREFIX}BLAS"} | {f"{_PREFIX}{kind.upper()}_DIR" for kind in _FOLDER_KINDS})
_STRENGTH = ("default", "user", "project", "environment", "flag")

Value: TypeAlias = "str | int | float | bool | None"
"""What a setting may hold."""

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


PoolMemory: TypeAlias = int | Literal["auto"]
"""Bytes, or ``auto``: sized by the memory that is free, also where a weaker source names a number."""


def parse_bytes(value: object) -> PoolMemory | None:
    """Return the bytes that ``4GB`` (10**9), ``512MiB`` (2**20) or a plain number means; None and auto stay.

    Raises:
        ValueError: it is not a size.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    unit = None if found is None else _UNITS.get(found[2].upper())
    if found is None or unit is None:
        raise ValueError(f"{value!r} is not a size such as 4GB, 512MiB or 1000000")
    return int(float(found[1]) * unit)


def parse_size(name: str, text: str) -> PoolMemory:
    """Return the bytes that a flag's text means, or ``auto``.

    Raises:
        InvalidParameter: it is not a size, or it is 0.
    """
    try:
        size = parse_bytes(text)
    except ValueError:
        size = None
    if not size:
        raise InvalidParameter(name, text, "auto, or a size above 0 such as 4GB, 512MiB or 1000000")
    return size


class Settings(BaseModel):
    """Every setting that a file or a variable may hold; a command's flag of the same name overrides it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(
        None, min_length=1, description="registry name, folder or GGUF file; unset is the registry's default"
    )
    adapter: str | None = Field(None, min_length=1, description="folder of a LoRA adapter for the model")
    pool_pages: int | None = Field(None, ge=1, description="pages of the pool; unset sizes it by memory")
    pool_memory: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"] | None, BeforeValidator(parse_bytes)] = Field(
        None, description="bytes of the pool, such as 4GB; auto, or unset, is by the memory that is free"
    )
    page_size: Literal[8, 16, 32, 64] = Field(16, description="tokens per page: 8, 16, 32 or 64")
    max_batch: int = Field(32, ge=1, le=1024, description="requests that run at the same time")
    prefill_chunk: int = Field(512, ge=1, description="prefill tokens per step")
    stall_timeout: float = Field(10.0, gt=0, allow_inf_nan=False, description="seconds without progress until an alarm")
    offline: bool = Field(False, description="never use the network")
    color: Literal["auto", "always", "never"] = Field("auto", description="colour on a terminal: auto, always, never")
    log_file: str | None = Field(None, min_length=1, description="where the log goes; unset is the system's place")
    system: str | None = Field(None, description="system message of run and chat")
    max_tokens: int = Field(512, ge=0, description="tokens of an answer")
    temp: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="sampling temperature; unset is 0, greedy, but for thinking models"
    )
    top_p: float | None = Field(None, gt=0, le=1, description="smallest set of tokens with this probability")
    top_k: int | None = Field(None, ge=0, description="likeliest tokens to keep; 0 keeps all")
    min_p: float | None = Field(None, ge=0, le=1, description="least probability relative to the likeliest")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: ``flag``, ``environment``, ``project``, ``user`` or ``default``, and the place."""

    source: Literal["flag", "environment", "project", "user", "default"]
    place: str = ""

    def __str__(self) -> str:
        """Name the source and, where it has one, the place."""
        return f"{self.source} ({self.place})" if self.place else self.source


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force, and the origin of each."""

    settings: Settings
    origins: Mapping[str, Origin]


def folder(kind: Literal["config", "state", "data", "cache"]) -> Path:
    """Return the program's folder of a kind; it need not exist yet."""
    moved = os.environ.get(f"{_PREFIX}{kind.upper()}_DIR")
    if moved:
        return Path(moved).expanduser()
    import platformdirs

    paths: dict[str, Callable[..., Path]] = {
        "config": platformdirs.user_config_path,
        "state": platformdirs.user_state_path,
        "data": platformdirs.user_data_path,
        "cache": platformdirs.user_cache_path,
    }
    return paths[kind]("pie-mlx", appauthor=False)


def user_file() -> Path:
    """Return the path of the user's configuration file; it need not exist."""
    return folder("config") / "config.toml"


def load(flags: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None) -> Config:
    """Return the settings in force; ``flags`` holds what the command line gave, None where a flag was not given.

    Raises:
        ConfigError: a file cannot be read, or a key or value is wrong; names file, line and nearest key.
        InvalidParameter: a flag is outside its range.
        UsageError: one source sizes the pool in pages and in bytes.
    """
    values: dict[str, object] = {}
    origins = {name: Origin("default") for name in Settings.model_fields}
    for source, path in (("user", user_file()), ("project", PROJECT_FILE)):
        for key, (value, line) in _read_file(path).items():
            values[key] = value
            origins[key] = Origin(source, f"{path}:{line}")  # type: ignore[arg-type]
    for key, (value, variable) in _read_environment(os.environ if environ is None else environ).items():
        values[key] = value
        origins[key] = Origin("environment", variable)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    for key, flag_value in given.items():
        _check_flag(key, flag_value)
        origins[key] = Origin("flag")
    return Config(Settings.model_validate(_one_pool_size({**values, **given}, origins)), origins)


def _one_pool_size(values: dict[str, object], origins: dict[str, Origin]) -> dict[str, object]:
    """Keep the stronger of the two settings that size the pool.

    Raises:
        UsageError: both come from the same source.
    """
    if values.get("pool_pages") is None or values.get("pool_memory") is None:
        return values
    pages, memory = (_STRENGTH.index(origins[key].source) for key in ("pool_pages", "pool_memory"))
    if pages == memory:
        raise UsageError(f"pool_pages and pool_memory both size the pool ({origins['pool_pages']})", "give only one")
    weaker = "pool_pages" if pages < memory else "pool_memory"
    origins[weaker] = Origin("default")
    return {key: value for key, value in values.items() if key != weaker}


def _read_file(path: Path) -> dict[str, tuple[Value, int]]:
    """Return key to (value, line) of one file, checked; a file that is not there holds nothing."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), None, f"cannot be read: {error}") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise ConfigError(str(path), None, f"not TOML: {error}", int(at[1]) if at else None) from error
    lines = _key_lines(text)
    found: dict[str, tuple[Value, int]] = {}
    for key, value in table.items():
        line = lines.get(key, 1)
        _check(key, value, where=str(path), line=line)
        found[key] = (value, line)
    return found


def _key_lines(text: str) -> dict[str, int]:
    """Return the line of each top-level key or table, as far as it is written plainly."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if found := re.match(r"""\s*\[{0,2}\s*["']?([\w-]+)["']?\s*[=.\]]""", line):
            lines.setdefault(found[1], number)
    return lines


def _read_environment(environ: Mapping[str, str]) -> dict[str, tuple[Value, str]]:
    """Return key to (value, variable) of every ``PIE_MLX_*`` variable that is set and not empty."""
    found: dict[str, tuple[Value, str]] = {}
    for variable, text in environ.items():
        if not variable.startswith(_PREFIX) or variable in _OTHER_VARIABLES or not text:
            continue
        key = variable.removeprefix(_PREFIX).lower()
        value = _parse_text(key, text) if key in Settings.model_fields else text
        try:
            _check(key, value, where="environment", line=None)
        except ConfigError as error:
            nearest = None if error.nearest is None else f"{_PREFIX}{error.nearest.upper()}"
            raise ConfigError("environment", variable, error.reason, nearest=nearest) from error
        found[key] = (value, variable)
    return found


def _parse_text(key: str, text: str) -> Value:
    """Turn the text of a variable, or of ``config set``, into the type that its key wants, where it can be read."""
    kind = str(Settings.model_fields[key].annotation)
    if "bool" in kind and text.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return text.lower() in ("1", "true", "yes", "on")
    if key == "pool_memory" or "str" in kind:
        return text
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _check(key: str, value: object, *, where: str, line: int | None) -> None:
    """Refuse an unknown key and a value that is not allowed."""
    if key not in Settings.model_fields:
        near = get_close_matches(key.replace("-", "_").lower(), Settings.model_fields, n=1, cutoff=0.5)
        reason = "there is no such setting" if near else "there is no such setting; pie-mlx config show lists all"
        raise ConfigError(where, key, reason, line, near[0] if near else None)
    fault = _fault(key, value)
    if fault is not None:
        raise ConfigError(where, key, fault, line)


def _check_flag(key: str, value: object) -> None:
    """Refuse a flag's value that is not allowed."""
    fault = _fault(key, value)
    if fault is not None:
        raise InvalidParameter(f"--{key.replace('_', '-')}", value, fault.partition(", but it must be ")[2] or fault)


def _fault(key: str, value: object) -> str | None:
    """Say what is wrong with a value, None if nothing is. Text is not a number here, nor is 1 a boolean."""
    try:
        Settings.__pydantic_validator__.validate_assignment(Settings.model_construct(), key, value, strict=None)
    except ValidationError as error:
        return f"{value!r}, but it must be {_allowed(key, error)}"
    if _is_mistyped(key, value):
        return f"{value!r}, but it must be {_kind_name(key)}"
    return None


def _is_mistyped(key: str, value: object) -> bool:
    """Whether the value has a type that pydantic would quietly convert: text for a number, 1 for a boolean."""
    kind = str(Settings.model_fields[key].annotation)
    if "bool" in kind:
        return not isinstance(value, bool)
    if key == "pool_memory" or "Literal" in kind or "str" in kind:
        return isinstance(value, bool)
    return value is not None and (isinstance(value, bool | str))


def _kind_name(key: str) -> str:
    """Name the type of a setting in words."""
    kind = str(Settings.model_fields[key].annotation)
    if "bool" in kind:
        return "true or false"
    return "a number" if "float" in kind else "text" if "str" in kind else "a whole number"


def _allowed(key: str, error: ValidationError) -> str:
    """Say what a setting may be, from the limit that was broken."""
    first = error.errors()[0]
    limits = first.get("ctx", {})
    words = {
        "greater_than_equal": "{ge} or more",
        "greater_than": "above {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "below {lt}",
        "literal_error": "{expected}",
        "string_too_short": "not empty",
        "finite_number": "a finite number",
    }
    if first["type"] in words:
        return words[first["type"]].format(**limits)
    return "auto or a size such as 4GB" if key == "pool_memory" else _kind_name(key)


def set_value(key: str, text: str, *, path: Path | None = None) -> Path:
    """Write one setting into a file (the user's by default), keeping its comments; return the file.

    Raises:
        ConfigError: the key is unknown, the value not allowed, or the file not TOML.
    """
    import tomlkit

    path = path or user_file()
    value = _parse_text(key, text) if key in Settings.model_fields else text
    _check(key, value, where=str(path), line=None)
    _read_file(path)
    document = tomlkit.parse(path.read_text(encoding="utf-8-sig")) if path.exists() else tomlkit.document()
    document[key] = value
    target = path.resolve()  # where it is a link, the link stays
    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(target.name + ".new")
    written.write_text(tomlkit.dumps(document), encoding="utf-8")
    written.replace(target)
    return path
