"""Settings are validated before they count."""

from __future__ import annotations

import pytest

from pie_mlx.chat.settings import ChatSettings, about_setting, setting_names
from pie_mlx.errors import InvalidParameter, UsageError


def test_settings_are_changed_by_name_or_alias() -> None:
    """Both spellings of a setting reach it, and the old settings stay as they were."""
    old = ChatSettings()
    new = old.changed("temp", "0.7").changed("top-k", "40").changed("reasoning", "FOLD").changed("seed", "7")
    assert (new.temperature, new.top_k, new.reasoning, new.seed) == (0.7, 40, "fold", 7)
    assert old == ChatSettings()
    assert new.changed("seed", "random").seed is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("temperature", "hot"),
        ("top_p", "0"),
        ("top_p", "1.5"),
        ("top_k", "-1"),
        ("top_k", "1.5"),
        ("min_p", "2"),
        ("max_tokens", "0"),
        ("seed", "-1"),
        ("reasoning", "loud"),
        ("overflow", ""),
    ],
)
def test_a_value_outside_its_range_is_refused(name: str, text: str) -> None:
    """The refusal names the setting and what it may be."""
    with pytest.raises(InvalidParameter) as caught:
        ChatSettings().changed(name, text)
    assert caught.value.name == name


def test_an_unknown_setting_meets_the_nearest() -> None:
    """A typing error is answered with the name that was meant."""
    with pytest.raises(UsageError) as caught:
        ChatSettings().changed("temprature", "1")
    assert caught.value.hint == "did you mean 'temperature'?"


def test_settings_survive_json_and_unknown_keys() -> None:
    """A session that a later version wrote can still be read."""
    settings = ChatSettings(temperature=0.3, seed=5, reasoning="hide")
    assert ChatSettings.from_json(settings.to_json()) == settings
    assert ChatSettings.from_json('{"temperature": 0.3, "of_the_future": 1}').temperature == 0.3


def test_every_setting_is_described() -> None:
    """/set says what each setting does."""
    assert all(about_setting(name) for name in setting_names())


def test_thinking_is_told_to_the_template_only_when_chosen() -> None:
    """Auto leaves it to the template."""
    assert [ChatSettings(thinking=way).wants_thinking for way in ("auto", "on", "off")] == [None, True, False]
