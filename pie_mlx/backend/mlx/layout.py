"""Which of a model's caches keep K and V, which keep a recurrent state, and how they nest.

mlx-lm's models name what they need by the caches they make. Each such cache becomes a **leaf**: K and V go to
one layer of the arena, the arrays of a recurrent layer to one entry of the context's state. A cache of another
kind is refused: what it does with tokens that are taken back is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlx import nn

from pie_mlx.errors import UnsupportedModel

T = TypeVar("T")

_PLAIN_KINDS = ("KVCache", "ConcatenateKVCache", "ChunkedKVCache")


@dataclass(frozen=True, slots=True)
class KVLeaf:
    """A cache of K and V: arena layer ``layer``, of which the model sees the last ``window`` tokens (None: all)."""

    layer: int
    window: int | None


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """A cache of ``size`` arrays, entry ``entry`` of a context's state."""

    entry: int
    size: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A cache that is made of several."""

    children: tuple[Node, ...]


Node = KVLeaf | StateLeaf | Branch


@dataclass(frozen=True, slots=True)
class Layout:
    """The caches of a model, in the order in which it makes them."""

    nodes: tuple[Node, ...]
    windows: tuple[int | None, ...]
    """Of each leaf with K and V, a layer of the arena: the last tokens that the model sees of it (None: all)."""
    num_states: int
    """Leaves with a recurrent state."""

    @property
    def window(self) -> int | None:
        """The widest window; None where a layer sees all tokens, or none keeps K and V."""
        bounded = [each for each in self.windows if each is not None]
        return max(bounded) if bounded and len(bounded) == len(self.windows) else None

    def build(self, make_kv: Callable[[KVLeaf], T], make_state: Callable[[StateLeaf], T]) -> list[Any]:
        """Return one cache for each node: a leaf's own, or a tuple of those of its children."""
        return [_build(node, make_kv, make_state) for node in self.nodes]


def _build(node: Node, make_kv: Callable[[KVLeaf], T], make_state: Callable[[StateLeaf], T]) -> Any:
    """Return a node's cache; a function inside ``build`` would refer to itself and hold the pass until a collection."""
    if isinstance(node, KVLeaf):
        return make_kv(node)
    if isinstance(node, StateLeaf):
        return make_state(node)
    return tuple(_build(child, make_kv, make_state) for child in node.children)


def own_caches(module: nn.Module) -> list[Any]:
    """Return fresh caches of mlx-lm's own for the model."""
    from mlx_lm.models.cache import make_prompt_cache

    made: list[Any] = make_prompt_cache(module)
    return made


def read_layout(module: nn.Module, model: str) -> Layout:
    """Learn what the model keeps for each context.

    Raises:
        UnsupportedModel: a layer keeps something that is neither K and V nor an immutable state.
    """
    reader = _Reader(model)
    nodes = reader.nodes(own_caches(module))
    return Layout(nodes, tuple(reader.windows), reader.num_states)


class _Reader:
    """Numbers the leaves."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.windows: list[int | None] = []
        self.num_states = 0

    def nodes(self, caches: Sequence[Any]) -> tuple[Node, ...]:
        """Return the nodes of some caches."""
        return tuple(self._node(cache) for cache in caches)

    def _node(self, cache: Any) -> Node:
        kind = type(cache).__name__
        if kind == "CacheList":
            return Branch(self.nodes(cache.caches))
        if kind == "ArraysCache":
            self.num_states += 1
            return StateLeaf(self.num_states - 1, len(cache.cache))
        if kind == "RotatingKVCache" and cache.keep == 0:
            return self._kv(int(cache.max_size))
        if kind in _PLAIN_KINDS:
            return self._kv(None)
        raise UnsupportedModel(
            self._model, f"a layer keeps what it has read in a {kind}, which cannot be kept in pages or forked"
        )

    def _kv(self, window: int | None) -> KVLeaf:
        self.windows.append(window)
        return KVLeaf(len(self.windows) - 1, window)
