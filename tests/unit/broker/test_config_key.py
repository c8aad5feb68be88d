from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.topics.config_key import VALUE_CHARS_MAX, ConfigKey, ConfigType
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError


def key(config_type: ConfigType) -> ConfigKey:
    return ConfigKey("some.key", config_type, None, "For tests.")


@pytest.mark.parametrize(
    ("config_type", "text", "normal"),
    [
        (ConfigType.LONG, " 7 ", "7"),
        (ConfigType.LONG, "+007", "7"),
        (ConfigType.LONG, "-9223372036854775808", "-9223372036854775808"),
        (ConfigType.INT, "2147483647", "2147483647"),
        (ConfigType.BOOLEAN, "TRUE", "true"),
        (ConfigType.DOUBLE, "0.50", "0.5"),
        (ConfigType.DOUBLE, "1", "1.0"),
        (ConfigType.LIST, " a , b,,a", "a,b"),
        (ConfigType.STRING, " as is ", "as is"),
    ],
)
def test_equal_values_have_the_same_normal_form(config_type: ConfigType, text: str, normal: str) -> None:
    assert key(config_type).normal(text) == normal
    assert key(config_type).normal(normal) == normal


@pytest.mark.parametrize(
    ("config_type", "text"),
    [
        (ConfigType.LONG, "9223372036854775808"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.SHORT, "32768"),
        (ConfigType.LONG, "1_000"),
        (ConfigType.LONG, "٣"),
        (ConfigType.LONG, "1.0"),
        (ConfigType.LONG, ""),
        (ConfigType.LONG, "9" * 5000),
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.DOUBLE, "inf"),
        (ConfigType.DOUBLE, "1_0"),
        (ConfigType.STRING, "x" * (VALUE_CHARS_MAX + 1)),
    ],
)
def test_an_invalid_value_is_refused_with_its_key(config_type: ConfigType, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^some\.key"):
        key(config_type).normal(text)


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.text(max_size=40))
def test_any_text_is_normalized_or_refused(name: str, text: str) -> None:
    """No other error than ConfigError is raised, and the normal form of a value is accepted unchanged."""
    topic_key = TOPIC_CONFIGS[name]
    try:
        normal = topic_key.normal(text)
    except ConfigError:
        return
    assert topic_key.normal(normal) == normal


@given(st.sampled_from(sorted(TOPIC_CONFIGS)), st.integers(-(2**64), 2**64))
def test_any_number_is_normalized_or_refused(name: str, number: int) -> None:
    topic_key = TOPIC_CONFIGS[name]
    try:
        normal = topic_key.normal(str(number))
    except ConfigError:
        return
    assert topic_key.normal(normal) == normal
