"""Text to tokens and back: nothing is lost, nothing can be forged, and a stream equals a whole decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.errors import InvalidParameter, TokenizerMissing
from pie_mlx.models.byte_text import byte_alphabet
from pie_mlx.models.tokenizer import Tokenizer, load_tokenizer

Json = dict[str, Any]
HARD = "👩‍👩‍👧 你好 ěščř"


def _streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token) for token in ids), stream.finish()]


@pytest.fixture(scope="session")
def tokenizer(bpe: Json) -> Tokenizer:
    """Return a byte-level tokenizer with two names of its own."""
    return Tokenizer(
        "tiny", bpe, {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}}, end_ids=frozenset()
    )


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    """Return a SentencePiece-like tokenizer with byte fallback that puts a space before a text."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁hello",
        "▁world",
        "h",
        "i",
        "▁▁",
    ]
    document: Json = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": pieces[i], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": []},
    }  # fmt: skip
    return Tokenizer("spm", document, {"eos_token": "</s>"}, end_ids=frozenset())


@given(st.text(max_size=60))
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    """Any text is what its tokens decode to, and the stream's pieces join to it."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert "".join(_streamed(tokenizer, ids)) == text


@given(st.lists(st.integers(0, 399), max_size=40))
def test_stream_equals_decode_for_any_tokens(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Also where the tokens are no text at all, the stream joins to the decode."""
    assert "".join(_streamed(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.lists(st.integers(0, 264), max_size=30))
def test_sentencepiece_stream_equals_decode(sentencepiece: Tokenizer, ids: list[int]) -> None:
    """The same holds for byte-fallback tokens and the space before a text."""
    assert "".join(_streamed(sentencepiece, ids)) == sentencepiece.decode(ids)


def test_characters_are_shown_whole(tokenizer: Tokenizer) -> None:
    """No piece of emoji, Chinese or Czech text holds a replacement character."""
    pieces = _streamed(tokenizer, tokenizer.encode(HARD))
    assert "".join(pieces) == HARD
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""


def test_cut_inside_a_character_shows_only_at_the_end(tokenizer: Tokenizer) -> None:
    """Tokens that end inside a character are held back, and only the end of the stream tells."""
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    vocab = json.loads(tokenizer._full.to_str())["model"]["vocab"]
    first, second, third = (vocab[alphabet[byte]] for byte in "你".encode())
    assert _streamed(tokenizer, [first, second, third]) == ["", "", "你", ""]
    assert _streamed(tokenizer, [first, second]) == ["", "", "\ufffd"]
    assert tokenizer.decode([first, second]) == "\ufffd"


def test_sentencepiece_text(sentencepiece: Tokenizer) -> None:
    """The first space goes, the others stay, and bytes join to characters."""
    ids = sentencepiece.encode(f"hi {HARD}")
    assert sentencepiece.decode(ids) == f"hi {HARD}"
    assert "".join(_streamed(sentencepiece, ids)) == f"hi {HARD}"


def test_byte_level_tokens_behind_a_sentencepiece_decoder(bpe: Json) -> None:
    """What a tokenizer encodes with decides: no ``Ġ`` is shown, whatever decoder the file names."""
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    stages = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]
    decoder = {"type": "Sequence", "decoders": stages}
    tokenizer = Tokenizer("tekken", {**bpe, "decoder": decoder}, {}, end_ids=frozenset())
    text = "The capital of France"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_imitated_control_tokens_are_text(tokenizer: Tokenizer) -> None:
    """Text that looks like a control token is encoded as text, unless asked otherwise."""
    text = "a<|im_end|>b"
    assert not set(tokenizer.encode(text)) & {0, 1, 2}
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 2 in tokenizer.encode(text, special=True)


def test_unmarked_turn_ends_are_controls_too(makers: Any) -> None:
    """An added token that a file forgets to call special still cannot be written by content."""
    document = makers.train_bpe(plain_added=["<｜User｜>", "\n\n", "<br>"])
    tokenizer = Tokenizer("x", document, {"chat_template": "{{ '<br>' }}"}, end_ids=frozenset())
    added = {item["content"]: item["id"] for item in document["added_tokens"]}
    assert added["<｜User｜>"] not in tokenizer.encode("x<｜User｜>y")
    assert added["<br>"] not in tokenizer.encode("x<br>y")
    assert added["\n\n"] in tokenizer.encode("x\n\ny")
    assert tokenizer.decode(tokenizer.encode("x<｜User｜>y", special=True)) == "x<｜User｜>y"


def test_control_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    """Control tokens have no text in a decode, but a name for display."""
    assert tokenizer.decode([1, *tokenizer.encode("hello"), 2]) == "hello"
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_ids_beyond_the_vocabulary(tokenizer: Tokenizer) -> None:
    """A padded vocabulary's ids have no text; a negative id is a mistake."""
    assert tokenizer.decode([50_000]) == ""
    with pytest.raises(InvalidParameter):
        tokenizer.decode([-1])


def test_roles_of_tokens(tokenizer: Tokenizer) -> None:
    """End and begin ids come from the config's texts, plain or as objects."""
    assert tokenizer.eos_ids == {2}
    assert tokenizer.bos_id == 1
    assert tokenizer.vocab_size == 400 or tokenizer.vocab_size > 256


def test_stream_work_is_linear(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream looks at each token once, however long the line is."""
    looked: list[int] = []
    original = Tokenizer.token_bytes

    def counted(self: Tokenizer, token: int) -> bytes:
        looked.append(token)
        return original(self, token)

    monkeypatch.setattr(Tokenizer, "token_bytes", counted)
    ids = tokenizer.encode("hello world " * 500)
    _streamed(tokenizer, ids)
    assert len(looked) == len(ids)


def test_missing_files_are_named(tmp_path: Path) -> None:
    """Without tokenizer files the error names them and the folder."""
    with pytest.raises(TokenizerMissing, match=r"tokenizer\.json.*vocab\.json") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in caught.value.message


def test_unreadable_slow_tokenizer_is_an_error(tmp_path: Path) -> None:
    """A damaged tokenizer.model, alone, is refused with a sentence."""
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(TokenizerMissing, match="other files cannot be read"):
        load_tokenizer(tmp_path)


def test_template_beside_the_config_wins(tiny: Path) -> None:
    """A chat_template.jinja file is the model's template."""
    (tiny / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!", encoding="utf-8")
    rendered = load_tokenizer(tiny).chat([{"role": "user", "content": "hey"}])
    assert rendered.text == "hey!"


def test_tokenizer_class_of_a_newer_library_does_not_matter(tiny: Path) -> None:
    """The class a config names is not needed where tokenizer.json is there."""
    config = json.loads((tiny / "tokenizer_config.json").read_text())
    (tiny / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "TokenizersBackend"}))
    assert load_tokenizer(tiny).decode(load_tokenizer(tiny).encode("hello")) == "hello"


def test_vocabulary_and_merges_alone_suffice(tiny: Path, bpe: Json) -> None:
    """A model with the older pair of files gives the same tokens."""
    expected = load_tokenizer(tiny).encode("The capital of France 你好")
    (tiny / "tokenizer.json").unlink()
    (tiny / "vocab.json").write_text(json.dumps(bpe["model"]["vocab"]), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["model"]["merges"]]
    (tiny / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
    (tiny / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>"}')
    tokenizer = load_tokenizer(tiny)
    assert tokenizer.encode("The capital of France 你好") == expected
    assert 2 in tokenizer.eos_ids


def test_end_token_with_wide_bars_is_not_shown(makers: Any) -> None:
    """An end token whose characters are no bytes stops the text and leaves no trace in it."""
    end = "<｜end▁of▁sentence｜>"
    document = makers.train_bpe(controls=[end])
    tokenizer = Tokenizer("x", document, {"eos_token": end}, end_ids=frozenset())
    ids = tokenizer.encode(f"hello{end}", special=True)
    assert tokenizer.eos_ids == {ids[-1]}
    assert "".join(_streamed(tokenizer, ids)) == tokenizer.decode(ids) == "hello"


def test_spaces_are_not_cleaned_up(tokenizer: Tokenizer) -> None:
    """A space before a full stop stays where the model put it."""
    for text in ("a .", " leading", "it 's", "end "):
        assert "".join(_streamed(tokenizer, tokenizer.encode(text))) == text


def test_streams_and_encodings_build_nothing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a tokenizer is paid once a model, not once a request."""
    monkeypatch.setattr("pie_mlx.models.tokenizer._build", None)
    for _ in range(3):
        assert "".join(_streamed(tokenizer, tokenizer.encode("hello"))) == "hello"
