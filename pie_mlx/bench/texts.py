"""Prompts of an exact number of tokens, made from ordinary words: the same for every machine."""

from __future__ import annotations

from typing import Protocol

from pie_mlx.sampling import mix

_TEXT = (
    "the river carries stones down from the hills and every spring it finds a new way through the fields while people "
    "build small walls of wood and clay to keep their gardens dry they count the days by the height of the water and "
    "tell their children which trees will stand and which will fall before the summer returns with dust and long light"
)
_WORDS = _TEXT.split()


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of ``text``."""
        ...


def prompt_of(encoder: Encoder, num_tokens: int, *, variant: int = 0) -> list[int]:
    """Return exactly ``num_tokens`` ids of readable text; another ``variant`` differs from the first word on."""
    words: list[str] = []
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        at = len(words)
        words += [_WORDS[mix(variant * 1_000_003 + at + offset) % len(_WORDS)] for offset in range(64)]
        tokens = encoder.encode(" ".join(words))
    return tokens[:num_tokens]
