"""What a search may do and spend: validated before any work is done."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Literal, TypeAlias, cast, get_args

from pie_mlx.errors import InvalidParameter
from pie_mlx.sampling import Sampling

StrategyName: TypeAlias = Literal[
    "greedy", "best_of_n", "self_consistency", "beam", "dfs", "best_first", "dvts", "mcts"
]
ScorerName: TypeAlias = Literal[
    "auto", "label", "p_true", "vote", "logprob", "move", "checker", "consistency", "rating", "oracle", "none"
]
ProposeMode: TypeAlias = Literal["model", "legal"]

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

_SEED_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SearchParams:
    """The parameters of one run; every field is recorded in its trace.

    Raises:
        InvalidParameter: a value is outside its range, or two values contradict each other.
    """

    strategy: StrategyName = "beam"
    scorer: ScorerName = "auto"
    """``auto`` takes the task's checker where a node is finished, else labels; legal moves are ranked by ``move``."""
    propose: ProposeMode = "model"
    """Who proposes children: the model, or the task's list of legal moves (no model call)."""
    breadth: int = 3
    """Children of an expanded node; samples of best-of-n and self-consistency; subtree width of DVTS."""
    beam: int = 2
    """Nodes kept a level; DVTS: independent subtrees."""
    depth: int | None = None
    """Levels below the root; None is the task's own depth."""
    max_tokens: int = 64
    """Tokens of one thought."""
    answer_tokens: int = 192
    """Tokens of an answer that is written from the thoughts."""
    reasoning_tokens: int = 0
    """Tokens a thinking model may spend before each thought, apart from the thought's own; 0 switches thinking off."""
    budget_nodes: int | None = None
    budget_tokens: int | None = None
    """Prompt tokens computed and tokens generated, together."""
    budget_seconds: float | None = None
    budget_pages: int | None = None
    """Pages the run may hold at once; None is what is free when it starts."""
    patience: int | None = None
    """End after this many expansions without a better node; None never does."""
    temperature: float = 0.7
    top_p: float = 0.95
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    dedup: bool = True
    """Let equal states (or near-equal texts) share one node."""
    stop_first: bool = True
    """End at the first solved node; False spends the whole plan and counts solutions."""
    oracle: bool = False
    """Allow scores from the task's known truth; said in the result."""
    keep_above: float | None = None
    """DFS leaves a node whose value is below this; None follows every node."""
    exploration: float = 1.0
    """MCTS: the constant c of UCT."""
    rollouts: int = 8
    """MCTS: number of descents from the root."""
    self_weight: Literal["count", "value"] = "count"
    """Self-consistency: one vote a sample, or votes weighted by value."""

    def __post_init__(self) -> None:
        """Validate every field, then the combinations."""
        _choice("strategy", self.strategy, get_args(StrategyName))
        _choice("scorer", self.scorer, get_args(ScorerName))
        _choice("propose", self.propose, get_args(ProposeMode))
        _choice("self_weight", self.self_weight, ("count", "value"))
        for name in ("breadth", "beam", "max_tokens", "answer_tokens", "rollouts"):
            _whole(name, getattr(self, name), 1)
        _whole("reasoning_tokens", self.reasoning_tokens, 0)
        for name in ("depth", "budget_nodes", "budget_tokens", "budget_pages", "patience"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        if self.budget_seconds is not None:
            _number("budget_seconds", self.budget_seconds, above=0.0)
        if self.keep_above is not None:
            _number("keep_above", self.keep_above)
        _number("exploration", self.exploration, above=-1e-300)
        _whole("seed", self.seed, 0, _SEED_MAX)
        for name in ("dedup", "stop_first", "oracle"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, getattr(self, name), "true or false")
        if self.scorer == "move" and self.propose != "legal":
            raise InvalidParameter("scorer", "move", "another scorer, unless moves are listed (--propose legal)")
        if self.scorer == "oracle" and not self.oracle:
            raise InvalidParameter("scorer", "oracle", "another scorer, unless the oracle is allowed (--oracle)")
        self.sampling(0)

    def sampling(self, seed: int) -> Sampling:
        """Return the sampling of a request whose branch has ``seed``."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p, seed=seed)

    def to_json(self) -> dict[str, Json]:
        """Return every field, as the trace's first line holds it."""
        return cast("dict[str, Json]", asdict(self))

    @classmethod
    def from_json(cls, fields: dict[str, Json]) -> SearchParams:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidParameter: a field is unknown or its value is outside its range.
        """
        unknown = sorted(set(fields) - set(cls.__dataclass_fields__))
        if unknown:
            raise InvalidParameter("params", unknown[0], "a parameter of this version")
        return cls(**fields)  # type: ignore[arg-type]


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not one of ``allowed``."""
    if isinstance(value, Enum) or value not in allowed:
        raise InvalidParameter(name, value, "one of " + ", ".join(allowed))


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but a whole number in ``[low, high]``; a boolean is not a number."""
    upper = "" if high is None else f" to {high}"
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        raise InvalidParameter(name, value, f"a whole number from {low}{upper or ' up'}")


def _number(name: str, value: object, *, above: float | None = None) -> None:
    """Refuse anything but a finite number greater than ``above``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidParameter(name, value, "a finite number")
    if above is not None and value <= above:
        raise InvalidParameter(name, value, f"a number greater than {max(above, 0.0):g}" if above >= 0 else "0 or more")
