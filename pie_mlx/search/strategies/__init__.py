"""Search strategies by name."""

from __future__ import annotations

from collections.abc import Mapping

from pie_mlx.search.params import StrategyName
from pie_mlx.search.strategies.base import Strategy
from pie_mlx.search.strategies.beam import Beam
from pie_mlx.search.strategies.best_first import BestFirst
from pie_mlx.search.strategies.best_of_n import BestOfN
from pie_mlx.search.strategies.dfs import DepthFirst
from pie_mlx.search.strategies.dvts import Dvts
from pie_mlx.search.strategies.greedy import Greedy
from pie_mlx.search.strategies.mcts import Mcts
from pie_mlx.search.strategies.self_consistency import SelfConsistency

STRATEGIES: Mapping[StrategyName, type[Strategy]] = {
    "greedy": Greedy,
    "best_of_n": BestOfN,
    "self_consistency": SelfConsistency,
    "beam": Beam,
    "dfs": DepthFirst,
    "best_first": BestFirst,
    "dvts": Dvts,
    "mcts": Mcts,
}
"""Every strategy that a run can be given."""
