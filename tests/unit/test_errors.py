"""The tree of errors: each says what happened, survives JSON, and has the exit code that the manual gives."""

from __future__ import annotations

import dataclasses
import inspect
import json

import pytest

from pie_mlx import errors
from pie_mlx.errors import PieError

EXIT_CODES = {
    errors.UsageError: 2,
    errors.InvalidParameter: 2,
    errors.ConfigError: 2,
    errors.EmptyPrompt: 2,
    errors.ContextTooLong: 2,
    errors.ModelError: 3,
    errors.PressureError: 4,
    errors.DeviceError: 4,
    errors.Cancelled: 130,
    errors.PieError: 1,
}
"""The nearest class above an error decides; pressure, device and watchdog are 4."""

SAMPLES: dict[str, object] = {
    "str": "a name",
    "str | None": "a name",
    "int": 3,
    "int | None": 3,
    "float": 1.5,
    "object": {"nested": [1, 2.5, None, {"deep": True}]},
    "tuple[str, ...]": ("one", "two"),
    "tuple[int, ...]": (4, 5),
    "tuple[Holder, ...]": (errors.Holder("context 1", 9, 2, 0.5),),
    "Mapping[str, str | int]": {"model": "x", "pages": 3},
}

CLASSES = [
    member
    for _name, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, PieError) and member.__module__.startswith(f"{errors.__name__}.")
]


def make(kind: type[PieError]) -> PieError:
    """Construct an error with a sample in each of its fields."""
    values = {
        field.name: SAMPLES[str(field.type)]
        for field in dataclasses.fields(kind)
        if str(field.type) in SAMPLES or field.default is dataclasses.MISSING
    }
    return kind(**values)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_what_happened_in_text_and_json(kind: type[PieError]) -> None:
    """The message is a sentence of its own; JSON keeps code, message, hint and every field."""
    error = make(kind)
    assert len(error.message) > 5
    assert str(error) == error.message == error.args[0]
    assert "object at 0x" not in error.message
    assert error.hint is None or error.hint
    facts = error.to_json()
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) == {"code", "message", "hint", "detail"}
    assert (facts["code"], facts["message"], facts["hint"]) == (error.code, error.message, error.hint)
    detail = facts["detail"]
    assert isinstance(detail, dict)
    assert set(detail) == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_exit_codes_are_those_of_the_manual(kind: type[PieError]) -> None:
    """2 usage, 3 model, 4 pressure and device, 130 interrupted, 1 everything else."""
    nearest = next(base for base in kind.__mro__ if base in EXIT_CODES)
    assert kind.exit_code == EXIT_CODES[nearest]


def test_codes_are_unique() -> None:
    """Programs tell errors apart by their code."""
    codes = [kind.code for kind in CLASSES]
    assert len(codes) == len(set(codes))


def test_errors_can_be_raised_and_caught_by_family() -> None:
    """The type survives; a family is caught by its root."""
    with pytest.raises(errors.PressureError) as caught:
        raise errors.Hog(1, 9, 10)
    assert type(caught.value) is errors.Hog
    assert "9 of 10 pages" in str(caught.value)


def test_starvation_names_waiter_and_largest_holder() -> None:
    """The sentence alone says who waited, for what, and who holds it."""
    holder = errors.Holder("tree (context 7)", 30, 12, 4.0)
    error = errors.Starved(5, 2, 32, "pinned contexts hold 30 pages", "request 9", (holder,), ("evicted nobody",))
    for part in ("request 9", "5 pages", "2 free of 32", "pinned", "tree (context 7)", "30 pages", "12 shared"):
        assert part in str(error)


def test_memory_and_length_are_not_mixed_up() -> None:
    """Too long for the model and too large for the pool are different errors with different exits."""
    too_long, too_large = errors.ContextTooLong(10, 5), errors.Impossible(10, 5)
    assert too_long.code != too_large.code
    assert (too_long.exit_code, too_large.exit_code) == (2, 4)
    assert "pool" not in too_long.message
