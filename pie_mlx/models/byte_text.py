"""What a token is in bytes, for each kind of tokenizer, and the byte alphabet of byte-level BPE.

Text is always made from bytes: a token may end inside a character, so only bytes can be joined. The
rule is chosen by what the tokenizer's JSON *encodes* with: a byte-level pre-tokenizer makes byte-level
tokens, whatever its decoder claims.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from pie_mlx.errors import UnsupportedModel

ToBytes: TypeAlias = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPM_SPACE = "\u2581"


@cache
def byte_alphabet() -> Mapping[str, int]:
    """Return the printable character that stands for each byte (GPT-2's table), character to byte."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = (byte for byte in range(256) if byte not in shown)
    return {**{chr(byte): byte for byte in shown}, **{chr(256 + i): byte for i, byte in enumerate(hidden)}}


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; one that was never byte-level stands for itself."""
    alphabet = byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """Return the bytes of a SentencePiece token: ``<0xE4>`` is one byte, ``▁`` a space."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPM_SPACE, " ").encode()


def decoding_rule(model: str, tokenizer: Mapping[str, Any]) -> tuple[ToBytes, bool]:
    """Return how a token becomes bytes, and whether a text's first space is an artefact to drop.

    Raises:
        UnsupportedModel: the decoder is not byte-level or SentencePiece.
    """
    stages = list(_stages(tokenizer.get("decoder")))
    kinds = {stage.get("type") for stage in stages}
    encodes_bytes = any(stage.get("type") == "ByteLevel" for stage in _stages(tokenizer.get("pre_tokenizer")))
    if encodes_bytes or "ByteLevel" in kinds:
        return byte_level_bytes, False
    if kinds & {"Metaspace", "ByteFallback"} or any(_turns_marker_to_space(stage) for stage in stages):
        return sentencepiece_bytes, any(_drops_first_space(stage) for stage in stages)
    names = ", ".join(sorted(str(kind) for kind in kinds)) or "none"
    raise UnsupportedModel(model, f"tokenizer.json has a decoder that is not known here ({names})")


def _stages(node: object) -> Iterator[Mapping[str, Any]]:
    """Yield a pipeline node's stages, in order, out of nested sequences."""
    if not isinstance(node, dict):
        return
    inner = node.get("decoders") or node.get("pretokenizers")
    if inner is None:
        yield node
        return
    for stage in inner:
        yield from _stages(stage)


def _turns_marker_to_space(stage: Mapping[str, Any]) -> bool:
    """Whether a stage replaces SentencePiece's marker."""
    return stage.get("type") == "Replace" and stage.get("pattern") == {"String": _SPM_SPACE}


def _drops_first_space(stage: Mapping[str, Any]) -> bool:
    """Whether a stage drops the space that the encoder put before a text."""
    if stage.get("type") == "Strip":
        return stage.get("content") == " " and int(stage.get("start", 0)) > 0
    if stage.get("type") == "Metaspace":
        return stage.get("prepend_scheme", "always") != "never" and bool(stage.get("add_prefix_space", True))
    return False
