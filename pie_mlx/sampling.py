"""How the next token is chosen: validated parameters, and the uniform number that decides.

The filters apply in the order top-p, min-p, top-k on the untempered distribution, as mlx-lm does; then
the temperature; then one draw by inverse transform with :func:`uniform`, which depends on the
request's seed and the token's position alone: never on the batch, the thread or a global generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pie_mlx.errors import InvalidParameter

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one request; the default is greedy."""

    temperature: float = 0.0
    """0 is greedy; the other filters then have no effect."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; 1 keeps all."""
    top_k: int = 0
    """Keep this many tokens; 0 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest; 0 keeps all."""
    seed: int = 0
    """Decides every draw of the request."""
    num_logprobs: int = 0
    """How many of the likeliest tokens to report with each token, besides the chosen one."""

    def __post_init__(self) -> None:
        """Validate before any work is done.

        Raises:
            InvalidParameter: a parameter is outside its range, NaN included.
        """
        _check("temperature", self.temperature, 0.0, math.inf, "a number from 0 up")
        _check("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1", open_low=True)
        _check("min_p", self.min_p, 0.0, 1.0, "from 0 to 1")
        _check_int("top_k", self.top_k, 0, None, "a whole number from 0 up (0 keeps all)")
        _check_int("seed", self.seed, 0, _MASK, "a whole number from 0 to 2**64-1")
        _check_int("logprobs", self.num_logprobs, 0, 20, "a whole number from 0 to 20")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0.0


def _check(name: str, value: float, low: float, high: float, allowed: str, *, open_low: bool = False) -> None:
    """Refuse a float outside ``[low, high]``, NaN, infinity and booleans."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (open_low and value == low):
        raise InvalidParameter(name, value, allowed)


def _check_int(name: str, value: int, low: int, high: int | None, allowed: str) -> None:
    """Refuse anything but an integer in ``[low, high]``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise InvalidParameter(name, value, allowed)


def mix(value: int) -> int:
    """Scramble 64 bits (the splitmix64 finalizer, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that draws the token at ``position`` of a request with ``seed``."""
    return (mix(mix(seed) ^ position) >> 11) * 2.0**-53


def derive_seed(seed: int, *path: int) -> int:
    """Return the seed of a branch: a hash of the run's seed and the branch's path."""
    value = mix(seed)
    for step in path:
        value = mix(value ^ mix(step + 1))
    return value
