"""What a chat can set: how replies are drawn, and what is shown; every change is validated before it counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Literal, TypeAlias

from pie_mlx.errors import InvalidParameter, UsageError
from pie_mlx.sampling import Sampling

Setting: TypeAlias = "str | int | float | bool | None"

_ALIASES = {"temp": "temperature", "max-tokens": "max_tokens", "top-p": "top_p", "top-k": "top_k", "min-p": "min_p"}
_CHOICES: dict[str, tuple[str, ...]] = {
    "reasoning": ("show", "fold", "hide"),
    "overflow": ("trim", "refuse"),
    "thinking": ("auto", "on", "off"),
}
_ABOUT = {
    "max_tokens": "tokens of a reply at most",
    "temperature": "0 is greedy",
    "top_p": "smallest set of tokens with this probability",
    "top_k": "likeliest tokens to keep; 0 keeps all",
    "min_p": "least probability relative to the likeliest",
    "seed": "decides the draws; random draws a new one each reply",
    "reasoning": "how the model's reasoning is shown: show, fold or hide",
    "thinking": "whether the model reasons first: auto, on or off",
    "overflow": "when the context is full: trim (the oldest turns) or refuse",
}


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of one conversation."""

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    """None draws a new seed for each reply."""
    reasoning: Literal["show", "fold", "hide"] = "show"
    thinking: Literal["auto", "on", "off"] = "auto"
    overflow: Literal["trim", "refuse"] = "trim"

    def __post_init__(self) -> None:
        """Refuse what no reply could be drawn with.

        Raises:
            InvalidParameter: a value is outside its range.
        """
        self.sampling(0)
        if not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool) or self.max_tokens < 1:
            raise InvalidParameter("max_tokens", self.max_tokens, "a whole number from 1 up")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidParameter(name, getattr(self, name), " or ".join(choices))

    def sampling(self, seed: int) -> Sampling:
        """Return how a reply is drawn; ``seed`` counts only where none is set.

        Raises:
            InvalidParameter: a parameter is outside its range.
        """
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=seed if self.seed is None else self.seed,
        )

    @property
    def wants_thinking(self) -> bool | None:
        """What the chat template is told; None leaves it to the template."""
        return {"auto": None, "on": True, "off": False}[self.thinking]

    def changed(self, name: str, text: str) -> ChatSettings:
        """Return the settings with ``name`` set to what ``text`` says.

        Raises:
            UsageError: there is no such setting.
            InvalidParameter: the value is not allowed.
        """
        key = setting_name(name)
        return replace(self, **{key: _read(key, text.strip())})  # type: ignore[arg-type]

    def to_json(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChatSettings:
        """Read settings; keys that this version does not know are left out.

        Raises:
            InvalidParameter: a value is not allowed.
        """
        known = {item.name for item in fields(cls)}
        values: Mapping[str, Setting] = json.loads(text)
        return cls(**{key: value for key, value in values.items() if key in known})  # type: ignore[arg-type]


def setting_names() -> tuple[str, ...]:
    """Return the names of all settings."""
    return tuple(item.name for item in fields(ChatSettings))


def about_setting(name: str) -> str:
    """Say in a few words what a setting does."""
    return _ABOUT[name]


def setting_choices(name: str) -> tuple[str, ...]:
    """Return the words that a setting may be; none where it is a number."""
    return _CHOICES.get(name, ())


def setting_name(name: str) -> str:
    """Return a setting's full name.

    Raises:
        UsageError: there is no such setting; offers the nearest.
    """
    key = _ALIASES.get(name, name).replace("-", "_")
    names = setting_names()
    if key in names:
        return key
    near = get_close_matches(key, (*names, *_ALIASES), n=1, cutoff=0.5)
    suggestion = f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(names)}"
    raise UsageError(f"there is no setting {name!r}", suggestion)


def _read(key: str, text: str) -> Setting:
    """Turn text into the value of a setting.

    Raises:
        InvalidParameter: the text is no such value.
    """
    if key in _CHOICES:
        return text.lower()
    if key == "seed" and text.lower() in ("none", "random"):
        return None
    try:
        return int(text) if key in ("max_tokens", "top_k", "seed") else float(text)
    except ValueError:
        kind = "a whole number" if key in ("max_tokens", "top_k", "seed") else "a number"
        raise InvalidParameter(key, text, kind) from None
