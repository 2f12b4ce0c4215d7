"""Text to token ids and back, for one model.

Only ``tokenizer.json`` and the small ``tokenizers`` library are needed; ``transformers`` is imported
where a model has no such file. Text is decoded from the tokens' bytes, so a stream and a whole decode
agree by construction, and a character is shown when its last byte has come.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pie_mlx.errors import InvalidParameter, TokenizerMissing, UnsupportedModel
from pie_mlx.models.byte_text import decoding_rule, sentencepiece_bytes
from pie_mlx.models.chat import ChatTemplate, Conversation, Message, RenderedChat, read_template
from pie_mlx.models.folder import Json, eos_ids, read_config, read_json, read_optional_json, require_tokenizer
from pie_mlx.models.reasoning import ThinkMarkers, find_markers
from pie_mlx.models.tool_calls import find_form

if TYPE_CHECKING:
    from tokenizers import Tokenizer as FastTokenizer

__all__ = ["Message", "TextStream", "Tokenizer", "load_tokenizer"]

_MARKER_LIKE = re.compile(r"<[|｜].*[|｜]>|</?s>|\[/?[A-Z_]+\]|<(start|end)_of_turn>")


class Tokenizer:
    """The text side of one model. Safe to use from several threads."""

    def __init__(self, model: str, document: Json, config: Mapping[str, Any], *, end_ids: frozenset[int]) -> None:
        """Build from the JSON of a fast tokenizer, the ``tokenizer_config`` and the ids that end a turn.

        Raises:
            UnsupportedModel: the tokenizer's JSON is of a kind that cannot be read.
        """
        self.model = model
        self._config = config
        self._document = document
        self._added = _AddedTokens(document, config)
        self._to_bytes, self._drops_first_space = decoding_rule(model, document)
        self._full = _build(model, document)
        template = read_template(config)
        self._markers = find_markers(self._has_token, template)
        self.call_form = find_form(template or "")
        """How the model writes tool calls."""
        self._bytes: dict[int, bytes] = {}
        self._controls = self._added.controls(template or "", end_ids)
        self._plain = self._plain_encoder()
        self.eos_ids = end_ids | self._ids_of_role("eos")
        self.bos_id = next(iter(self._ids_of_role("bos")), None)
        self.template = None if template is None else ChatTemplate(model, template, self._added.roles)
        self.vocab_size: int = self._full.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read the tokenizer of a model folder.

        Raises:
            TokenizerMissing: there is no tokenizer file.
            ModelCorrupt: one of the JSON files is damaged.
            UnsupportedModel: the tokenizer is of a kind that cannot be read.
        """
        file = require_tokenizer(folder)
        document = read_json(file) if file.name == "tokenizer.json" else _convert_slow(folder)
        config = dict(read_optional_json(folder / "tokenizer_config.json"))
        beside = folder / "chat_template.jinja"
        if beside.is_file():
            config["chat_template"] = beside.read_text(encoding="utf-8-sig")
        elif (folder / "chat_template.json").is_file():
            config.setdefault("chat_template", read_json(folder / "chat_template.json").get("chat_template"))
        has_config = (folder / "config.json").is_file()
        ends = eos_ids(
            read_config(folder) if has_config else {}, read_optional_json(folder / "generation_config.json"), config
        )
        return cls(folder.name, document, config, end_ids=ends)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template; a base model has none."""
        return self.template is not None

    @property
    def think_markers(self) -> tuple[str, str] | None:
        """The texts around the model's reasoning, None where it does not reason in the open."""
        return None if self._markers is None else self._markers.pair

    @property
    def markers(self) -> ThinkMarkers | None:
        """The same, with the markers that are dropped: for a :class:`ReasoningSplitter`."""
        return self._markers

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of ``text``, nothing put before or after.

        With ``special`` false, text that looks like a control token is encoded as plain text.
        """
        encoder = self._full if special else self._plain
        return list(encoder.encode(text, add_special_tokens=False).ids)

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a raw prompt: begin-of-sequence first where the model wants it."""
        first = self._full.encode("", add_special_tokens=True).ids
        adds = bool(self._config.get("add_bos_token", self.bos_id in first))
        begin = [self.bos_id] if adds and self.bos_id is not None else []
        return [*begin, *self.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``: control tokens are left out, spaces are as they are.

        U+FFFD stands only where the bytes are no UTF-8: for instance where the ids end inside a character.
        """
        text = b"".join(self.token_bytes(token) for token in ids).decode("utf-8", "replace")
        return text[1:] if self._drops_first_space and text.startswith(" ") else text

    def token_text(self, token: int) -> str:
        """Return the text of one token, control tokens included, for display."""
        special = self._added.contents.get(token)
        return special if special is not None else self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes a token adds to the text: none for a control token or an unused id.

        Raises:
            InvalidParameter: the id is negative.
        """
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._make_bytes(token)
        return known

    def stream(self) -> TextStream:
        """Return a new stream that turns tokens into text one at a time."""
        return TextStream(self, drop_first_space=self._drops_first_space)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        """Return the ids of a conversation, through the model's chat template.

        No content can end its turn: text in it that imitates a control token stays text.

        Raises:
            TemplateError: the model has no template, or the template refuses the messages.
        """
        return list(self.chat(messages, add_generation_prompt=add_generation_prompt, thinking=thinking).ids)

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template tells the model of tools, and takes calls and their results as messages."""
        return self.template is not None and self.template.takes_tools

    def chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> RenderedChat:
        """Render as :meth:`render` does; return text, ids and notices too. ``tools`` go to the template as they are.

        Raises:
            TemplateError: as for :meth:`render`.
        """
        if self.template is None:
            raise ChatTemplate.missing(self.model)
        conversation = Conversation(
            tuple(messages),
            add_generation_prompt=add_generation_prompt,
            thinking=thinking,
            markers=self._markers,
            tools=tuple(tools),
        )
        return self.template.render(conversation, self._controls, self.encode)

    def _has_token(self, text: str) -> bool:
        return self._full.token_to_id(text) is not None

    def _ids_of_role(self, role: str) -> frozenset[int]:
        """Return the id of a special token that the config names by its text."""
        text = self._added.roles.get(f"{role}_token")
        found = None if text is None else self._full.token_to_id(text)
        return frozenset() if found is None else frozenset({found})

    def _make_bytes(self, token: int) -> bytes:
        if token < 0:
            raise InvalidParameter("token", token, "an id from 0 up")
        content = self._added.contents.get(token)
        if content is None:
            piece = self._full.id_to_token(token)
            return b"" if piece is None else self._to_bytes(piece)
        if token in self._added.special and not self._is_shown(content):
            return b""
        return self._to_bytes(content) if self._to_bytes is sentencepiece_bytes else content.encode()

    def _is_shown(self, content: str) -> bool:
        """Whether a control token is part of a think marker or of a tool call: their splitters must see those."""
        thinks = self._markers is not None and any(content in text for text in self._markers.texts)
        return thinks or self.call_form.shows(content)

    def _plain_encoder(self) -> FastTokenizer:
        """Return an encoder to which control tokens are plain text; other added tokens stay whole.

        The library numbers the added tokens outside the merging vocabulary by their order. So a control
        token among those is not left out but renamed to what no text can hold: an unguessable word.
        """
        secret = secrets.token_hex(16)
        merging = _merging_vocabulary(self._document)
        kept: list[Json] = []
        for item in self._document.get("added_tokens", []):
            if item["content"] not in self._controls:
                kept.append(item)
            elif item["content"] not in merging:
                kept.append({**item, "content": f"{secret}{item['id']}"})
        encoder = _build(self.model, {**self._document, "added_tokens": kept, "post_processor": None})
        for content in {item["content"] for item in kept} & set(self._added.contents.values()):
            if encoder.token_to_id(content) != self._full.token_to_id(content):
                raise UnsupportedModel(self.model, f"tokenizer.json numbers the added token {content!r} in two ways")
        return encoder


class TextStream:
    """Turns tokens into text one at a time, in time linear in the tokens.

    The pieces join to the decode of all tokens. A character that is not complete is held back.
    """

    def __init__(self, tokenizer: Tokenizer, *, drop_first_space: bool) -> None:
        """Start an empty stream over ``tokenizer``."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = drop_first_space

    def push(self, token: int) -> str:
        """Take the next token; return the text that is now certain, often empty."""
        return self._trimmed(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def finish(self) -> str:
        """End the stream; return U+FFFD for a character that never became complete, else nothing."""
        return self._trimmed(self._decoder.decode(b"", final=True))

    def _trimmed(self, text: str) -> str:
        """Drop the space that the encoder put before the text."""
        if not self._at_start or not text:
            return text
        self._at_start = False
        return text.removeprefix(" ")


class _AddedTokens:
    """The tokens outside the merging vocabulary, and which of them have a role."""

    def __init__(self, document: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        listed = list(document.get("added_tokens", []))
        self.contents: dict[int, str] = {int(item["id"]): str(item["content"]) for item in listed}
        self.special = frozenset(int(item["id"]) for item in listed if item.get("special"))
        self.roles: dict[str, str] = {
            key: text
            for key, value in config.items()
            if key.endswith("_token") and (text := _content(value)) is not None
        }

    def controls(self, template: str, end_ids: frozenset[int]) -> frozenset[str]:
        """Return the tokens that content must not be able to write.

        Besides the special ones: those the template writes, those that end a turn, and those that look
        like a marker (some models forget to call theirs special).
        """
        return frozenset(
            text
            for token, text in self.contents.items()
            if token in self.special
            or token in end_ids
            or (text.strip() and text in template and len(text) > 1)
            or _MARKER_LIKE.fullmatch(text)
        )


def _content(value: object) -> str | None:
    """Return the text of a special token, which a config gives plainly or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _merging_vocabulary(document: Mapping[str, Any]) -> frozenset[str]:
    """Return the tokens that need no added token to exist."""
    vocab = document["model"].get("vocab", {})
    return frozenset(vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab))


def _build(model: str, document: Json) -> FastTokenizer:
    """Build the encoder from its JSON."""
    from tokenizers import Tokenizer as FastTokenizer

    try:
        return FastTokenizer.from_str(json.dumps(document, ensure_ascii=False))
    except Exception as error:  # the library raises a bare Exception, of no class of its own
        raise UnsupportedModel(
            model, f"tokenizer.json cannot be read: {error}", "a newer tokenizers package may read it"
        ) from error


def _convert_slow(folder: Path) -> Json:
    """Have transformers turn a tokenizer without ``tokenizer.json`` into one with it."""
    try:
        from transformers import AutoTokenizer

        slow = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        document = json.loads(slow.backend_tokenizer.to_str())
    except (ImportError, OSError, ValueError, AttributeError, RuntimeError, TypeError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TokenizerMissing(
            folder.name, f"there is no tokenizer.json in {folder}, and its other files cannot be read: {reason}"
        ) from error
    return dict(document)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a model folder: see :meth:`Tokenizer.from_folder`."""
    return Tokenizer.from_folder(folder)
