from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.broker.limits import LIMIT_CONFIGS, BrokerLimits, limits_of
from headrace.broker.net.client_limits import SlowClientTimer
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics.broker_configs import BROKER_CONFIGS, static_configs
from headrace.errors import ConfigError


def test_without_settings_the_limits_are_their_defaults() -> None:
    assert limits_of({}) == BrokerLimits()


def test_every_limit_can_be_set_by_its_name() -> None:
    values = {key.name: str(int(key.default or 0) + 1) for key in LIMIT_CONFIGS}
    limits = limits_of(values)
    assert limits.connections_max == 10_001
    assert limits.records.headers_max == 10_001
    names = (
        field.name for field in dataclasses.fields(BrokerLimits) if field.init and field.name != "records"
    )
    effective = {getattr(limits, name) for name in names}
    effective |= {getattr(limits.records, name) for name in limits.records.__slots__}
    assert effective == {int(value) for value in values.values()}


def test_limits_are_static_broker_configurations() -> None:
    settings = BrokerSettings(data_dir=Path("d"), configs={"max.connections": " 7 "}, topics_max=5)
    static = static_configs(settings)
    assert static["max.connections"] == "7"
    assert static["headrace.topics.max"] == "5"
    assert not BROKER_CONFIGS["max.connections"].dynamic


@pytest.mark.parametrize(
    ("name", "value"), [("max.connections", "0"), ("socket.request.max.bytes", "x"), ("fetch.max.bytes", "1")]
)
def test_an_invalid_limit_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        limits_of({name: value})


def test_the_timer_allows_a_slow_connection_but_not_single_bytes() -> None:
    limits = BrokerLimits(slow_ms_max=1000, slow_bytes_per_s_min=1000)
    timer = SlowClientTimer()
    assert timer.expired(100.0, 0, limits) is None
    timer.start(10.0, 500)
    assert timer.expired(11.0, 500, limits) is None
    assert timer.expired(11.5, 500 + 5_000, limits) is None
    # A new period began: earlier bytes no longer count.
    assert timer.expired(12.4, 5_520, limits) is None
    assert timer.expired(12.6, 5_520, limits) == "20 bytes in 1.1 s"
    timer.postpone(20.0)
    assert timer.expired(12.6, 5_520, limits) is None


def test_the_documentation_lists_every_limit_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    for key in LIMIT_CONFIGS:
        assert f"| `{key.name}` | {key.default} | {key.doc} |" in page
