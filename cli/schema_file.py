"""The JSON schema that an answer is held to, from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pie_mlx.errors import UsageError
from pie_mlx.models.constrained import SchemaError, json_grammar

_LARGEST = 1 << 20


def read_schema(path: Path) -> Mapping[str, Any]:
    """Return the schema in ``path``, checked before any model is loaded.

    Raises:
        UsageError: the file cannot be read, is no JSON object, or is no schema that an answer can be held to.
        ConstraintUnavailable: llguidance is not installed; names the command that installs it.
    """
    schema = _read_object(path)
    try:
        json_grammar(schema)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error.reason}", "a JSON Schema, such as one with type and properties") from error
    return schema


def _read_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UsageError: there is none.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} is larger than a schema can be ({_LARGEST:,} bytes)")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path after --schema") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})", "convert it to UTF-8 first") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{path} is not JSON: {error.msg} ({where})", "mend the file") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply to be a schema") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no schema: a JSON object is expected, not {type(value).__name__}")
    return value
