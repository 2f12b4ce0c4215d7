"""Rebuild a tokenizer from a GGUF file's metadata, as the JSON of a fast tokenizer.

``tokenizer.ggml.pre`` names how text is cut into words before merging. Only kinds whose cutting rule is
known exactly are rebuilt: a wrong rule gives a model that runs and answers badly, which no test of the
user's would show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pie_mlx.errors import ModelCorrupt, TokenizerMissing, UnsupportedModel
from pie_mlx.models.gguf_header import GGUFHeader, Value
from pie_mlx.models.gguf_pieces import SPACE, pieces_decoder, pieces_model, pieces_normalizer

Json = dict[str, Any]


class TokenType(IntEnum):
    """What a token is, as ``tokenizer.ggml.token_type`` numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class WordRule:
    """How text becomes words: a pattern, or GPT-2's own with digits apart or not."""

    pattern: str | None = None
    single_digits: bool = False
    normalizer: str | None = None
    whole_words_first: bool = False
    """A word that is itself a token is taken whole, whatever the merges say."""

    def pre_tokenizer(self) -> Json:
        """Return the rule in the form of a fast tokenizer's ``pre_tokenizer``."""
        stages: list[Json] = []
        if self.single_digits:
            stages.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            pattern = {"Regex": self.pattern}
            stages.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
        stages.append(byte_level(use_regex=self.pattern is None))
        return {"type": "Sequence", "pretokenizers": stages}


_GPT2 = WordRule()
_SINGLE_DIGITS = WordRule(single_digits=True)
_LLAMA3 = WordRule(pattern=_LLAMA3_WORDS, whole_words_first=True)
_QWEN2 = WordRule(pattern=_QWEN2_WORDS, normalizer="NFC")
_TEKKEN = WordRule(pattern=_TEKKEN_WORDS, whole_words_first=True)

WORD_RULES: Mapping[str, WordRule] = {
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
}
"""``tokenizer.ggml.pre`` to the rule it names."""

_TURN_ENDS = frozenset({
    "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>",
    "<|call|>", "</s>", "<end_of_turn>", "<EOT>", "<|eot|>", "<｜end▁of▁sentence｜>",
})  # fmt: skip
"""Control tokens that end a turn in the models that have them."""

_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def byte_level(*, use_regex: bool) -> Json:
    """Return the byte-level stage: bytes become printable characters."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


@dataclass(frozen=True, slots=True)
class RebuiltTokenizer:
    """The two JSON documents of a tokenizer, and the ids that end a turn."""

    tokenizer: Json
    tokenizer_config: Json
    eos_ids: tuple[int, ...]
    bos_id: int | None
    vocab_size: int


def rebuild_tokenizer(header: GGUFHeader) -> RebuiltTokenizer:
    """Rebuild the tokenizer that ``header`` describes.

    Raises:
        TokenizerMissing: the file holds no tokens.
        UnsupportedModel: the tokenizer is of another kind, or its word rule is not known.
        ModelCorrupt: its lists contradict each other.
    """
    model = str(header.path)
    keys = _TokenizerKeys(model, header.metadata)
    kind = keys.text("model")
    if kind is None:
        raise TokenizerMissing(model, "the file holds no tokenizer (tokenizer.ggml.model is missing)")
    tokens = keys.texts("tokens") if kind in _KINDS else []
    types = keys.types(len(tokens)) if kind in _KINDS else []
    if len(set(tokens)) != len(tokens):
        raise ModelCorrupt(model, "the tokenizer lists a token twice")
    if kind == "gpt2":
        parts = _byte_level_parts(keys, tokens, _word_rule(model, keys))
    elif kind == "llama":
        parts = _piece_parts(model, keys, tokens, types)
    else:
        raise UnsupportedModel(
            model,
            f"its tokenizer is of the kind {kind!r}; byte-level BPE ('gpt2') and SentencePiece BPE ('llama') are read",
            "choose the MLX form of this model (pie-mlx models)",
        )
    added = _added_tokens(tokens, types)
    bos_id = keys.token_id("bos_token_id", len(tokens))
    eos_ids = _eos_ids(keys, tokens, types)
    add_bos = keys.flag("add_bos_token", default=parts.add_bos) and bos_id is not None
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": _bos_first(tokens[bos_id], bos_id) if add_bos and bos_id is not None else None,
        "decoder": parts.decoder,
        "model": parts.model,
    }
    config = _tokenizer_config(keys, tokens, added, {"bos": bos_id, "eos": eos_ids[0] if eos_ids else None})
    config["add_bos_token"] = add_bos
    return RebuiltTokenizer(document, config, eos_ids, bos_id, len(tokens))


_KINDS = frozenset({"gpt2", "llama"})


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a fast tokenizer that depend on its kind."""

    model: Json
    normalizer: Json | None
    pre_tokenizer: Json | None
    decoder: Json
    add_bos: bool
    """Whether files of the kind want the begin-of-sequence token where they do not say."""


def _byte_level_parts(keys: _TokenizerKeys, tokens: Sequence[str], rule: WordRule) -> _Parts:
    """Return the parts of a byte-level BPE."""
    return _Parts(
        model=_bpe(tokens, keys.texts("merges"), ignore_merges=rule.whole_words_first),
        normalizer=None if rule.normalizer is None else {"type": rule.normalizer},
        pre_tokenizer=rule.pre_tokenizer(),
        decoder=byte_level(use_regex=True),
        add_bos=rule.whole_words_first,
    )


def _piece_parts(model: str, keys: _TokenizerKeys, tokens: Sequence[str], types: Sequence[int]) -> _Parts:
    """Return the parts of a SentencePiece BPE."""
    scores = keys.reals("scores", len(tokens))
    unknown = keys.token_id("unknown_token_id", len(tokens))
    if unknown is None:
        unknown = next((at for at, kind in enumerate(types) if kind == TokenType.UNKNOWN), None)
    num_bytes = sum(kind == TokenType.BYTE for kind in types)
    if unknown is None or num_bytes != 256:
        raise UnsupportedModel(model, f"its SentencePiece tokenizer has {num_bytes} of 256 byte pieces, or no unknown")
    if keys.flag("remove_extra_whitespaces", default=False):
        raise UnsupportedModel(model, "its SentencePiece tokenizer drops white space, which is not rebuilt here")
    add_space = keys.flag("add_space_prefix", default=True)
    own = [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.USER_DEFINED]
    if add_space and any(SPACE in token for token in own):
        raise UnsupportedModel(model, "its SentencePiece tokenizer has pieces of its own for spaces before words")
    atomic = frozenset(at for at, kind in enumerate(types) if kind != TokenType.NORMAL)
    return _Parts(
        model=pieces_model(tokens, scores, atomic, tokens[unknown]),
        normalizer=pieces_normalizer(add_space=add_space),
        pre_tokenizer=None,
        decoder=pieces_decoder(add_space=add_space),
        add_bos=True,
    )


def _word_rule(model: str, keys: _TokenizerKeys) -> WordRule:
    """Return the word rule of the file, or refuse it."""
    pre = keys.text("pre")
    if pre is None or pre not in WORD_RULES:
        known = ", ".join(WORD_RULES)
        raise UnsupportedModel(model, f"its tokenizer cuts words by the rule {pre!r}; known are {known}")
    return WORD_RULES[pre]


class _TokenizerKeys:
    """Typed access to the ``tokenizer.*`` keys."""

    def __init__(self, model: str, metadata: Mapping[str, Value]) -> None:
        self._model = model
        self._metadata = metadata

    def text(self, name: str, *, prefix: str = "tokenizer.ggml.") -> str | None:
        value = self._metadata.get(prefix + name)
        if value is not None and not isinstance(value, str):
            raise ModelCorrupt(self._model, f"{prefix}{name} is not a text")
        return value

    def texts(self, name: str) -> list[str]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if values is None:
            raise TokenizerMissing(self._model, f"the file holds no tokenizer.ggml.{name}")
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            raise ModelCorrupt(self._model, f"tokenizer.ggml.{name} is not a list of texts")
        return [str(item) for item in values]

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise ModelCorrupt(self._model, f"tokenizer.ggml.{name} is not true or false")
        return value

    def token_id(self, name: str, num_tokens: int) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < num_tokens:
            raise ModelCorrupt(self._model, f"tokenizer.ggml.{name} is {value!r}, but there are {num_tokens} tokens")
        return value

    def reals(self, name: str, num_tokens: int) -> list[float]:
        values = self._metadata.get(f"tokenizer.ggml.{name}")
        if not isinstance(values, list) or len(values) != num_tokens:
            raise ModelCorrupt(self._model, f"tokenizer.ggml.{name} does not list {num_tokens} numbers")
        return [float(item) for item in values]

    def types(self, num_tokens: int) -> list[int]:
        values = self._metadata.get("tokenizer.ggml.token_type")
        if not isinstance(values, list) or len(values) != num_tokens:
            raise ModelCorrupt(self._model, f"tokenizer.ggml.token_type does not list {num_tokens} types")
        return [int(item) for item in values]


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[Json]:
    """List the tokens that text is cut at before any merging."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    atomic = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
    return [
        {
            "id": index,
            "content": token,
            **plain,
            # A piece of spaces is looked for where the text's spaces have become the sign for them.
            "normalized": kind == TokenType.USER_DEFINED and SPACE in token,
            "special": kind != TokenType.USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in atomic
    ]


def _eos_ids(keys: _TokenizerKeys, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """Return every id that ends a turn, the file's own end-of-sequence id first."""
    named = [keys.token_id(key, len(tokens)) for key in _EOS_KEYS]
    known = [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == TokenType.CONTROL and token in _TURN_ENDS
    ]
    return tuple(dict.fromkeys([*(item for item in named if item is not None), *known]))


def _bpe(tokens: Sequence[str], merges: Sequence[str], *, ignore_merges: bool) -> Json:
    """Return the BPE model: every token by id, and the merges by rank."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": list(merges),
    }


def _bos_first(token: str, token_id: int) -> Json:
    """Return the post-processor that puts the begin-of-sequence token before a text."""
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    pair = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, pair],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def _tokenizer_config(
    keys: _TokenizerKeys, tokens: Sequence[str], added: Sequence[Json], ends: Mapping[str, int | None]
) -> Json:
    """Return ``tokenizer_config.json``: special tokens by role, the template, no clean-up of spaces."""
    roles = {
        **ends,
        "unk": keys.token_id("unknown_token_id", len(tokens)),
        "pad": keys.token_id("padding_token_id", len(tokens)),
    }
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(item["id"]): {key: value for key, value in item.items() if key != "id"} for item in added
        },
    }
    for role, token_id in roles.items():
        if token_id is not None:
            config[f"{role}_token"] = tokens[token_id]
    template = keys.text("chat_template", prefix="tokenizer.")
    if template is not None:
        config["chat_template"] = template
    return config
