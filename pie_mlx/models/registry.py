"""The models that have names: ``models.toml`` of the program, and the user's own beside the settings.

The user's file adds models and changes fields of known ones. A mistake in either file is an error that
names file, line and key; nothing of a wrong file is used.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pie_mlx import config
from pie_mlx.errors import ConfigError, ModelNotFound, UsageError
from pie_mlx.models.sources import HubSource, parse_source, require_source

BUILT_IN = Path(__file__).parent.parent / "models.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_TABLE = re.compile(r"""\s*\[\s*models\s*\.\s*(?:"([^"]+)"|'([^']+)'|([\w-]+))\s*(?:\.\s*([\w-]+)\s*)?\]""")
_KEY = re.compile(r"""\s*["']?([\w-]+)["']?\s*=""")


class RecommendedSampling(BaseModel):
    """Sampling as a model's authors recommend it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)


class ModelEntry(BaseModel):
    """One model of the registry; only ``source`` must be given, what is not known is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    source: str
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """Of the GGUF file, for sources that hold one."""
    architecture: str | None = None
    parameters: str | None = None
    quantization: str | None = None
    context: int | None = Field(None, ge=1)
    """Tokens the model is made for."""
    licence: str | None = None
    download_bytes: int | None = Field(None, ge=1)
    """Where it differs from ``disk_bytes``."""
    disk_bytes: int | None = Field(None, ge=1)
    memory_bytes: int | None = Field(None, ge=1)
    """Weights, KV of 8,192 tokens and working space."""
    min_ram_gb: int | None = Field(None, ge=1)
    """Of the machine."""
    thinking: bool = False
    sampling: RecommendedSampling = RecommendedSampling()

    @field_validator("source")
    @classmethod
    def _is_source(cls, text: str) -> str:
        try:
            require_source(text)
        except UsageError as error:
            raise ValueError(error.reason) from error
        return text

    @property
    def revision(self) -> str | None:
        """The hub revision the entry pins, None where it follows the main branch or is no hub source."""
        source = parse_source(self.source)
        return source.revision if isinstance(source, HubSource) else None


@dataclass(frozen=True, slots=True)
class Registry:
    """Every model that has a name."""

    entries: Mapping[str, ModelEntry]
    default_name: str

    def __iter__(self) -> Iterator[tuple[str, ModelEntry]]:
        """Yield names and entries in the order of the files."""
        return iter(self.entries.items())

    def get(self, name: str) -> ModelEntry:
        """Return the model called ``name``.

        Raises:
            ModelNotFound: no model has this name; suggests the nearest names.
        """
        entry = self.entries.get(name)
        if entry is not None:
            return entry
        near = difflib.get_close_matches(name.lower(), self.entries, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? (pie-mlx models lists all)" if near else "pie-mlx models lists all"
        raise ModelNotFound(name, "no model has this name, and there is no such folder or file", hint)


def user_registry() -> Path:
    """Return the path of the user's own ``models.toml``; it need not exist."""
    return config.folder("config") / "models.toml"


def load_registry(*, user_file: Path | None = None) -> Registry:
    """Read the program's ``models.toml`` and, on top of it, the user's.

    Raises:
        ConfigError: one of the files is wrong; names file, line, key and the nearest known key.
    """
    built_in = _RegistryFile.read(BUILT_IN)
    entries = built_in.entries({})
    default = built_in.default(entries)
    path = user_file or user_registry()
    if path.is_file():
        own = _RegistryFile.read(path)
        entries = own.entries(built_in.tables)
        default = own.default(entries) or default
    assert default is not None, "models.toml names no default"
    return Registry(entries, default)


@dataclass(frozen=True, slots=True)
class _RegistryFile:
    """One ``models.toml``, with the line of everything in it."""

    path: Path
    document: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, str | None], int]

    @classmethod
    def read(cls, path: Path) -> _RegistryFile:
        """Read the file; refuse what is not TOML or not a table of models."""
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), None, f"cannot be read: {error}") from error
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"line (\d+)", str(error))
            raise ConfigError(str(path), None, f"not TOML: {error}", int(at[1]) if at else None) from error
        tables = document.get("models", {})
        file = cls(path, document, tables if isinstance(tables, dict) else {}, _lines(text))
        file.check_form(tables)
        return file

    def check_form(self, tables: object) -> None:
        """Refuse unknown top-level keys, wrong names and models that are not tables."""
        for key in self.document:
            if key not in ("models", "default"):
                raise self._error(("", key), key, "there is no such key", nearest=_nearest(key, ("models", "default")))
        if not isinstance(tables, dict):
            raise self._error(("", "models"), "models", "must be tables, as in [models.NAME]")
        for name, table in tables.items():
            if not _NAME.fullmatch(name):
                raise self._error((name, None), name, "a model's name has lower-case letters, digits, '.', '_' and '-'")
            if not isinstance(table, dict):
                raise self._error(("", name), name, "must be a table, as in [models.NAME]")

    def entries(self, below: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelEntry]:
        """Return every model, this file's fields on top of those ``below``."""
        merged = dict(below)
        for name, table in self.tables.items():
            known = merged.get(name, {})
            # Another source is another file: what was pinned for the old one says nothing about it.
            inherited = {key: value for key, value in known.items() if "source" not in table or key != "sha256"}
            merged[name] = {**inherited, **table}
        return {name: self._entry(name, table) for name, table in merged.items()}

    def default(self, entries: Mapping[str, ModelEntry]) -> str | None:
        """Return the name this file makes the default, None where it names none."""
        name = self.document.get("default")
        if name is None or name in entries:
            return name
        raise self._error(("", "default"), "default", f"{name!r} is no model", nearest=_nearest(str(name), entries))

    def _entry(self, name: str, table: Mapping[str, Any]) -> ModelEntry:
        try:
            return ModelEntry.model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
            path = [str(part) for part in first["loc"]]
            key = path[0]
            nearest = None
            reason = f"{first['input']!r}: {first['msg'].removeprefix('Value error, ')}"
            if first["type"] == "extra_forbidden":
                known = ModelEntry if len(path) == 1 else RecommendedSampling
                nearest, reason = _nearest(path[-1], known.model_fields), "there is no such key"
            elif first["type"] == "missing":
                reason = "is missing"
            raise self._error((name, key), f"models.{name}.{'.'.join(path)}", reason, nearest=nearest) from error

    def _error(self, at: tuple[str, str | None], key: str, reason: str, *, nearest: str | None = None) -> ConfigError:
        line = self.lines.get(at) or self.lines.get((at[0], None))
        return ConfigError(str(self.path), key, reason, line, nearest)


def _nearest(word: str, known: Any) -> str | None:
    """Return the known word nearest to ``word``."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def _lines(text: str) -> dict[tuple[str, str | None], int]:
    """Return the line of each model's header and keys; top-level keys belong to the model ``""``."""
    lines: dict[tuple[str, str | None], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = header[1] or header[2] or header[3]
            lines.setdefault((table, header[4]), number)
        elif other := re.match(r"\s*\[\s*([\w-]+)", line):
            table = ""
            lines.setdefault(("", other[1]), number)
        elif key := _KEY.match(line):
            lines.setdefault((table, key[1]), number)
    return lines
