"""A device that answers from a script, and a byte tokenizer with a chat template: what chat tests talk to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pie_mlx.backend.base import Outcome, Sampled, Segment
from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.models.byte_text import byte_alphabet
from pie_mlx.models.tokenizer import Tokenizer

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = 257

Answer = Callable[[str], str]
"""From the last message to the reply."""


def make_tokenizer(template: str | None = CHATML, *, controls: tuple[str, ...] = CONTROLS) -> Tokenizer:
    """Return a tokenizer with one token a byte, and control tokens from 256 on."""
    vocabulary = dict(byte_alphabet())
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    added = [
        {
            "id": 256 + index,
            "content": content,
            "special": "think" not in content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for index, content in enumerate(controls)
    ]
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": False},
    }
    config = {} if template is None else {"chat_template": template}
    return Tokenizer("scripted", document, config, end_ids=frozenset({END}))


class ScriptedBackend(FakeBackend):
    """The fake device, its tokens chosen by a script: the reply to the last message, then the end of the turn."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        answer: Answer,
        *,
        context_tokens: int = 4096,
        pause_s: float = 0.0,
        prefill_pause_s: float = 0.0,
        faults: Faults | None = None,
        name: str = "scripted",
    ) -> None:
        """Answer with ``answer``; each decode step takes ``pause_s``, each longer one ``prefill_pause_s``."""
        super().__init__(
            vocab_size=256 + len(CONTROLS), context_tokens=context_tokens, eos_ids=frozenset({END}), faults=faults
        )
        self._facts = type(self._facts)(**{**_fields(self._facts), "model": name, "fingerprint": name})
        self._tokenizer = tokenizer
        self._reply = answer
        self._pauses = (pause_s, prefill_pause_s)

    def step(self, segments: Any, foresee: Any = None) -> list[Outcome]:
        """Take the time that was asked for."""
        time.sleep(self._pauses[any(len(segment.tokens) > 1 for segment in segments)])
        return super().step(segments, foresee)

    def _answer(self, segment: Segment) -> Outcome:
        outcome = super()._answer(segment)
        if not isinstance(outcome, Sampled):
            return outcome
        message, written = self._read(self._sequence(segment))
        reply = self._tokenizer.encode(self._reply(message), special=True)
        token = reply[len(written)] if len(written) < len(reply) else END
        return Sampled(token, -0.5, outcome.top)

    def _read(self, sequence: list[int]) -> tuple[str, list[int]]:
        """Return the last message, and the part of the reply that is written."""
        header = self._tokenizer.encode("<|im_start|>assistant\n", special=True)
        at = max(i for i in range(len(sequence)) if sequence[i : i + len(header)] == header)
        text = self._tokenizer.decode(sequence[:at])
        return text.rpartition("user\n")[2].rstrip("\n"), sequence[at + len(header) :]


def _fields(facts: Any) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in type(facts).__slots__}


def start_engine(
    answer: Answer | Mapping[str, str] | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    pool_pages: int = 512,
    prefill_chunk: int = 512,
    **backend: Any,
) -> Engine:
    """Return an engine on the scripted device; a message without a scripted answer is echoed."""
    table = answer if isinstance(answer, Mapping) else {}
    reply = answer if callable(answer) else (lambda text: table.get(text, f"echo {text}"))
    codec = tokenizer or make_tokenizer()
    settings = EngineSettings(pool_pages=pool_pages, prefill_chunk=prefill_chunk)
    return Engine.start(lambda: ScriptedBackend(codec, reply, **backend), settings, codec)
