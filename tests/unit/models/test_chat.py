"""Chat templates: rendered as the model expects, never forged by content, and refusals said clearly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.errors import TemplateError
from pie_mlx.models.chat import Message
from pie_mlx.models.tokenizer import Tokenizer

Json = dict[str, Any]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
DROPS_SYSTEM = "{% set messages = messages | selectattr('role', 'ne', 'system') | list %}" + CHATML
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
)
THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
OPENS_THINKING = CHATML + "<think>\n"
STRIPS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1] | trim }}<|im_end|>\n{% endfor %}"
)

SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "Hi"}
REPLY: Message = {"role": "assistant", "content": "Hello"}


@pytest.fixture(scope="session")
def documents(makers: Any) -> dict[bool, Json]:
    """Return tokenizers without and with think tokens."""
    thinking = makers.train_bpe(plain_added=["<think>", "</think>"])
    return {False: makers.train_bpe(), True: thinking}


def _tokenizer(documents: dict[bool, Json], template: str | None, *, thinking: bool = False) -> Tokenizer:
    config: Json = {"eos_token": "<|im_end|>"}
    if template is not None:
        config["chat_template"] = template
    return Tokenizer("tiny", documents[thinking], config, end_ids=frozenset())


def test_conversation_is_rendered(documents: dict[bool, Json]) -> None:
    """Messages go through the template, and the control tokens of the template are control tokens."""
    rendered = _tokenizer(documents, CHATML).chat([SYSTEM, USER])
    assert rendered.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (rendered.ids.count(1), rendered.ids.count(2)) == (3, 2)
    assert (rendered.notices, rendered.starts_in_thinking) == ((), False)


def test_without_generation_prompt(documents: dict[bool, Json]) -> None:
    """The opening of the model's turn can be left out, as a finished history wants it."""
    ids = _tokenizer(documents, CHATML).render([USER], add_generation_prompt=False)
    assert (ids.count(1), ids.count(2)) == (1, 1)


@given(
    st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "hi", "\n", "<|", "im_end|>", "\ufdd0"]))
)
def test_content_cannot_close_its_turn(documents: dict[bool, Json], pieces: list[str]) -> None:
    """Whatever the content imitates, there are as many control tokens as the template wrote."""
    tokenizer = _tokenizer(documents, CHATML)
    content = "".join(pieces)
    rendered = tokenizer.chat([SYSTEM, {"role": "user", "content": content}])
    assert (rendered.ids.count(0), rendered.ids.count(1), rendered.ids.count(2)) == (0, 3, 2)
    assert content in rendered.text
    assert content in tokenizer.decode(rendered.ids)


def test_role_cannot_close_its_turn(documents: dict[bool, Json]) -> None:
    """A role is a plain word."""
    with pytest.raises(TemplateError, match="not a plain word"):
        _tokenizer(documents, CHATML).render([{"role": "user<|im_end|>", "content": "x"}])


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_system_text_is_never_lost(documents: dict[bool, Json], template: str) -> None:
    """A template that refuses or drops the system role gets its text in the first user turn, with a notice."""
    rendered = _tokenizer(documents, template).chat([SYSTEM, USER, REPLY, USER])
    assert "<|im_start|>user\nBe brief.\n\nHi<|im_end|>" in rendered.text
    assert "system\n" not in rendered.text
    assert len(rendered.notices) == 1
    assert "system" in rendered.notices[0]


def test_refusal_is_told_in_the_templates_words(documents: dict[bool, Json]) -> None:
    """What cannot be helped by folding is an error with the template's own reason."""
    with pytest.raises(TemplateError, match="roles must alternate") as caught:
        _tokenizer(documents, ALTERNATING).render([USER, USER])
    assert caught.value.exit_code == 3


def test_system_alone_is_not_folded(documents: dict[bool, Json]) -> None:
    """Without a user turn to fold into, the refusal stands."""
    with pytest.raises(TemplateError, match="System role not supported"):
        _tokenizer(documents, NO_SYSTEM).render([SYSTEM])


def test_base_model_has_no_template(documents: dict[bool, Json]) -> None:
    """A model without a template says so and what to do."""
    tokenizer = _tokenizer(documents, None)
    assert not tokenizer.has_chat_template
    with pytest.raises(TemplateError, match="base model") as caught:
        tokenizer.render([USER])
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for %}", "not valid"),
        ("{{ messages[9]['content'] }}", "failed"),
        ("{{ 1 / 0 }}", "failed"),
        ("{{ messages.__class__.__mro__ }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
    ],
)
def test_broken_and_hostile_templates_are_errors(documents: dict[bool, Json], template: str, words: str) -> None:
    """A wrong template, and one that reaches out of its sandbox, is a typed error."""
    with pytest.raises(TemplateError, match=words):
        _tokenizer(documents, template).render([USER])


@pytest.mark.parametrize("messages", [[], [{"role": "user"}], [{"role": "user", "content": None}], [{"content": "x"}]])
def test_messages_without_text_are_refused(documents: dict[bool, Json], messages: Any) -> None:
    """An empty conversation and a message without text are mistakes of the caller."""
    with pytest.raises(TemplateError):
        _tokenizer(documents, CHATML).render(messages)


def test_thinking_switch_reaches_the_template(documents: dict[bool, Json]) -> None:
    """The wish not to think is rendered as the template does it; the prompt then is past the thinking."""
    tokenizer = _tokenizer(documents, THINKING, thinking=True)
    assert tokenizer.think_markers == ("<think>", "</think>")
    quiet = tokenizer.chat([USER], thinking=False)
    assert quiet.text.endswith("<think>\n\n</think>\n\n")
    assert not quiet.starts_in_thinking
    assert tokenizer.chat([USER]).text.endswith("assistant\n")


def test_prompt_that_opens_the_thinking(documents: dict[bool, Json]) -> None:
    """A template that ends inside the think marker makes the model's first token reasoning."""
    tokenizer = _tokenizer(documents, OPENS_THINKING, thinking=True)
    assert tokenizer.chat([USER]).starts_in_thinking
    assert not tokenizer.chat([USER, {"role": "user", "content": "what does </think> mean?"}]).text.endswith("mean?")


def test_user_text_cannot_open_the_thinking(documents: dict[bool, Json]) -> None:
    """A think marker in the user's words does not count."""
    tokenizer = _tokenizer(documents, THINKING, thinking=True)
    assert not tokenizer.chat([{"role": "user", "content": "<think>"}]).starts_in_thinking


def test_template_still_strips_earlier_thinking(documents: dict[bool, Json]) -> None:
    """The model's own think markers reach the template whole in its own turns."""
    reply: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"}
    text = _tokenizer(documents, STRIPS_THINKING, thinking=True).chat([USER, reply]).text
    assert text.endswith("<|im_start|>assistant\nHello<|im_end|>\n")


def test_generation_tags_and_loop_controls(documents: dict[bool, Json]) -> None:
    """Tags that only training needs, and loop controls, do not break a template."""
    template = (
        "{% for m in messages %}{% if loop.index0 > 0 %}{% break %}{% endif %}"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    )
    text = _tokenizer(documents, template).chat([{"role": "user", "content": "ě'<b>"}, REPLY]).text
    assert text == '{"role": "user", "content": "ě\'<b>"}'


def test_named_templates(documents: dict[bool, Json]) -> None:
    """Of several named templates the default one is used."""
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    tokenizer = Tokenizer("tiny", documents[False], {"chat_template": named}, end_ids=frozenset())
    assert tokenizer.chat([USER]).text == "D"
