"""SentencePiece-like BPE of a GGUF file (the tokenizer kind ``llama``) as the JSON of a fast tokenizer.

The file lists pieces with scores and no merges. SentencePiece's BPE joins, again and again, the neighbours whose
joined piece has the highest score: so every way to split a piece into two pieces is a merge, ranked by the
piece's score, and among equal scores by the ids of the halves. Text that no piece covers falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

SPACE = "▁"
"""What pieces write for a space."""


def pieces_model(tokens: Sequence[str], scores: Sequence[float], atomic: frozenset[int], unknown: str) -> Json:
    """Return the BPE model of the pieces; ``atomic`` ids take part in no merge."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges_of(tokens, scores, atomic)],
    }


def merges_of(tokens: Sequence[str], scores: Sequence[float], atomic: frozenset[int]) -> list[tuple[str, str]]:
    """Return the merges that give what joining by the highest score gives, best first."""
    ids = {token: index for index, token in enumerate(tokens) if index not in atomic}
    found: list[tuple[float, int, int, str, str]] = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                found.append((-scores[index], ids[left], ids[right], left, right))
    found.sort(key=lambda each: each[:3])
    return [(left, right) for _, _, _, left, right in found]


def pieces_normalizer(*, add_space: bool) -> Json:
    """Return how text becomes pieces' text: spaces as a sign, and one before the text if the model wants it."""
    stages: list[Json] = [{"type": "Prepend", "prepend": SPACE}] if add_space else []
    stages.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return {"type": "Sequence", "normalizers": stages}


def pieces_decoder(*, add_space: bool) -> Json:
    """Return how pieces become text again."""
    stages: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if add_space:
        stages.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": stages}
