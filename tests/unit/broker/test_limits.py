from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.broker_configs import BROKER_CONFIGS, static_configs
from headrace.broker.limits import LIMIT_CONFIGS, BrokerLimits, limits_of
from headrace.broker.patience import Patience
from headrace.broker.settings import BrokerSettings
from headrace.errors import ConfigError


def test_without_settings_the_limits_are_their_defaults() -> None:
    assert limits_of({}) == BrokerLimits()


def test_every_limit_can_be_set_by_its_name_and_is_then_in_force() -> None:
    wanted = {key.name: str(int(key.default or 0) + 1) for key in LIMIT_CONFIGS}
    limits = limits_of(wanted)
    assert limits.connections_max == 10_001
    assert limits.records.headers_max == 10_001
    settled = {getattr(limits, name) for name in BrokerLimits.__slots__ if name != "records"}
    settled |= {getattr(limits.records, name) for name in limits.records.__slots__}
    assert settled == {int(value) for value in wanted.values()}


def test_a_limit_is_an_operator_s_to_set_and_shown_among_the_broker_s_configurations() -> None:
    settings = BrokerSettings(data_dir=Path("d"), configs={"max.connections": " 7 "}, topics_max=5)
    static = static_configs(settings)
    assert static["max.connections"] == "7"
    assert static["headrace.topics.max"] == "5"
    assert not BROKER_CONFIGS["max.connections"].dynamic


@pytest.mark.parametrize(
    ("name", "value"), [("max.connections", "0"), ("socket.request.max.bytes", "x"), ("fetch.max.bytes", "1")]
)
def test_a_limit_that_makes_no_sense_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        limits_of({name: value})


def test_a_slow_line_is_waited_for_and_a_byte_now_and_then_is_not() -> None:
    limits = BrokerLimits(slow_ms_max=1000, slow_bytes_per_s_min=1000)
    patience = Patience()
    assert patience.lost(100.0, 0, limits) is None
    patience.begin(10.0, 500)
    assert patience.lost(11.0, 500, limits) is None
    assert patience.lost(11.5, 500 + 5_000, limits) is None
    # A new stretch has begun: what came before no longer counts.
    assert patience.lost(12.4, 5_520, limits) is None
    assert patience.lost(12.6, 5_520, limits) == "20 bytes in 1.1 s"
    patience.put_off(20.0)
    assert patience.lost(12.6, 5_520, limits) is None


def test_the_page_of_limits_names_every_limit_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    for key in LIMIT_CONFIGS:
        assert f"| `{key.name}` | {key.default} | {key.doc} |" in page
