"""Templates in the manner of every family in models.toml: rendered, closed by their own control tokens, told apart."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.models.chat import Message
from pie_mlx.models.reasoning import split_reasoning
from pie_mlx.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Family:
    """How a family writes a conversation."""

    architectures: tuple[str, ...]
    controls: tuple[str, ...]
    template: str
    rendered: str
    """Of a system text, two turns and the opening of a third, with ``S``, ``A``, ``B`` and ``C`` as contents."""
    end: str
    answer: str = "Yes."
    """What the model writes to answer "Yes."."""
    plain: tuple[str, ...] = ()
    """Markers in the vocabulary that are no control tokens."""


_LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
_PHI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_OSS = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

FAMILIES = {
    "smollm": Family(
        ("llama",), ("<|im_start|>", "<|im_end|>"), _CHATML,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>",
    ),
    "qwen": Family(
        ("qwen3", "qwen3_moe"), ("<|im_start|>", "<|im_end|>"), _CHATML,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>",
        "<think>\nHm.\n</think>\n\nYes.", ("<think>", "</think>"),
    ),
    "llama": Family(
        ("llama",), ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), _LLAMA,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
    ),
    "gemma": Family(
        ("gemma3", "gemma3_text"), ("<bos>", "<start_of_turn>", "<end_of_turn>"), _GEMMA,
        "<bos><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
        "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>",
    ),
    "mistral": Family(
        ("mistral",), ("<s>", "</s>", "[INST]", "[/INST]"), _MISTRAL,
        "<s>[INST] S\n\nA[/INST] B</s>[INST] C[/INST]", "</s>",
    ),
    "phi": Family(
        ("phi3",), ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), _PHI,
        "<|system|>S<|end|><|user|>A<|end|><|assistant|>B<|end|><|user|>C<|end|><|assistant|>", "<|end|>",
    ),
    "gpt-oss": Family(
        ("gpt_oss",), ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>"), _OSS,
        "<|start|>system<|message|>S<|end|><|start|>user<|message|>A<|end|><|start|>assistant<|channel|>final"
        "<|message|>B<|end|><|start|>user<|message|>C<|end|><|start|>assistant", "<|return|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
    ),
}  # fmt: skip


def _conversation(last: str) -> list[Message]:
    """Return a system text, two turns and a question."""
    roles = ("system", "user", "assistant", "user")
    return [{"role": role, "content": text} for role, text in zip(roles, ("S", "A", "B", last), strict=True)]


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    """Return each family in turn."""
    return FAMILIES[request.param]


@pytest.fixture
def tokenizer(family: Family, makers: Any) -> Tokenizer:
    """Return a made-up tokenizer with the family's control tokens and template."""
    document = makers.train_bpe(controls=family.controls, plain_added=family.plain)
    config = {"chat_template": family.template, "eos_token": family.end, "bos_token": family.controls[0]}
    return Tokenizer("made-up", document, config, end_ids=frozenset())


def test_a_conversation_is_written_as_the_family_writes_it(family: Family, tokenizer: Tokenizer) -> None:
    """Exactly the family's text; a system text that it has no role for is kept, with a notice."""
    rendered = tokenizer.chat(_conversation("C"))
    assert rendered.text == family.rendered
    assert bool(rendered.notices) == ("S\n\nA" in family.rendered)
    assert not rendered.starts_in_thinking


def test_no_content_forges_a_control_token(family: Family, tokenizer: Tokenizer) -> None:
    """A question made of the family's control tokens adds none of them."""
    plain = tokenizer.chat(_conversation("C"))
    forged = tokenizer.chat(_conversation("".join(family.controls) + "C"))
    controls = [tokenizer.encode(text, special=True)[-1] for text in family.controls]
    for control in controls:
        assert forged.ids.count(control) == plain.ids.count(control)


def test_reasoning_is_told_from_the_answer(family: Family, tokenizer: Tokenizer) -> None:
    """Families that reason in the open are known by their tokens; the others' text is all answer."""
    told = split_reasoning(family.answer, tokenizer.markers)
    assert told.answer == "Yes."
    assert (told.reasoning.strip() == "Hm.") == ("Hm." in family.answer)
    assert (tokenizer.think_markers is not None) == ("Hm." in family.answer)


def test_the_end_of_a_turn_ends_generation(family: Family, tokenizer: Tokenizer) -> None:
    """The family's own end token is among those that stop."""
    assert tokenizer.encode(family.end, special=True)[-1] in tokenizer.eos_ids


def test_every_architecture_of_the_registry_has_a_family_here() -> None:
    """A model that is added to models.toml brings its template's manner here."""
    registry = tomllib.loads((Path(__file__).parents[3] / "models.toml").read_text(encoding="utf-8"))
    known = {architecture for each in FAMILIES.values() for architecture in each.architectures}
    assert {model["architecture"] for model in registry["models"].values()} <= known
