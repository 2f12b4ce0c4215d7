"""SentencePiece BPE from a GGUF file: the same pieces as joining by the highest score gives."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from pie_mlx.errors import UnsupportedModel
from pie_mlx.models.gguf import convert_gguf
from pie_mlx.models.gguf_header import GGUFHeader
from pie_mlx.models.gguf_tokenizer import rebuild_tokenizer
from pie_mlx.models.tokenizer import Tokenizer

MakeGGUF = Callable[..., Path]
_TEXTS = ("the capital of france is paris", "hello hello there", "ab abc abcabc  b a", "12 121 1212")
_SPACE = "▁"


def _pieces() -> tuple[list[str], list[float], list[int]]:
    """Return a vocabulary: the specials, the bytes, pieces by how often they occur, and characters."""
    words = [_SPACE + word for text in _TEXTS for word in text.split()]
    counts = Counter(word[i:j] for word in words for i in range(len(word)) for j in range(i + 2, len(word) + 1))
    frequent = [piece for piece, _ in sorted(counts.items(), key=lambda each: (-each[1], len(each[0]), each[0]))]
    letters = sorted({letter for word in words for letter in word})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *frequent[:90], *letters]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)]
    return tokens, scores, [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]


TOKENS, SCORES, TYPES = _pieces()


def _joined(text: str) -> list[str]:
    """Join neighbours by the highest score, the first of equals first; what is left over becomes bytes."""
    ranks = {token: score for token, score, kind in zip(TOKENS, SCORES, TYPES, strict=True) if kind == 1}
    parts = list((_SPACE + text.replace(" ", _SPACE)) if text else "")
    while True:
        pairs = [(ranks[a + b], -at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in ranks]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    split = [[part] if part in ranks else [f"<0x{byte:02X}>" for byte in part.encode()] for part in parts]
    return [piece for pieces in split for piece in pieces]


def _metadata(**changes: object) -> dict[str, object]:
    """Return the tokenizer's keys of a file."""
    keys: dict[str, object] = {
        "model": "llama", "tokens": TOKENS, "scores": SCORES, "token_type": TYPES, "bos_token_id": 1,
        "eos_token_id": 2, "unknown_token_id": 0, **changes,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def _rebuild(**changes: object) -> FastTokenizer:
    """Rebuild the tokenizer."""
    header = cast("GGUFHeader", SimpleNamespace(path=Path("x.gguf"), metadata=_metadata(**changes)))
    return FastTokenizer.from_str(json.dumps(rebuild_tokenizer(header).tokenizer))


FAST = _rebuild()


@given(st.text(st.sampled_from("abcehlloprst 12▁ě你"), max_size=24).filter(lambda text: _SPACE not in text))
def test_pieces_are_those_of_the_highest_scores(text: str) -> None:
    """Any text: the same pieces, and the same text back."""
    encoded = FAST.encode(text, add_special_tokens=False)
    assert encoded.tokens == _joined(text)
    assert FAST.decode(encoded.ids) == text


def test_a_file_with_pieces_becomes_a_whole_model(make_gguf: MakeGGUF, makers: Any, tmp_path: Path) -> None:
    """Through the file: ids, begin-of-sequence and text as the rebuilt tokenizer has them."""
    keys = {key.replace(".", "__"): value for key, value in _metadata().items()}
    keys |= {"tokenizer__ggml__merges": None, "tokenizer__ggml__pre": None, "tokenizer__ggml__add_bos_token": True}
    keys["tokenizer__ggml__scores"] = [float(score) for score in SCORES]
    path = make_gguf(tensors=makers.gguf_tensors(vocab=len(TOKENS)), **keys)
    tokenizer = Tokenizer.from_folder(convert_gguf(path, tmp_path / "out"))
    text = "the capital ěščř 👩‍👩‍👧"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 2 in tokenizer.eos_ids


def test_what_is_not_certain_is_refused() -> None:
    """Missing byte pieces, dropped white space, and pieces of spaces before a space that is put in front."""
    with pytest.raises(UnsupportedModel, match="255 of 256 byte pieces"):
        _rebuild(token_type=[1 if at == 7 else kind for at, kind in enumerate(TYPES)])
    with pytest.raises(UnsupportedModel, match="drops white space"):
        _rebuild(remove_extra_whitespaces=True)
    own = TOKENS.index(_SPACE + "a")
    kinds = [4 if at == own else kind for at, kind in enumerate(TYPES)]
    with pytest.raises(UnsupportedModel, match="pieces of its own for spaces"):
        _rebuild(token_type=kinds)
    assert _rebuild(token_type=kinds, add_space_prefix=False).encode("b a", add_special_tokens=False).tokens[-1] == "▁a"
