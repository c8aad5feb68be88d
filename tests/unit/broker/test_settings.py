from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.broker.settings import BrokerSettings
from headrace.errors import ConfigError


def settings(**options: Any) -> BrokerSettings:
    return BrokerSettings(data_dir=Path("data"), **options)


def test_the_advertised_address_is_the_listening_one_by_default() -> None:
    assert settings(listen_host="10.0.0.1", listen_port=7).advertised == ("10.0.0.1", 7)


def test_the_advertised_address_can_be_set() -> None:
    configured = settings(
        listen_host="0.0.0.0", listen_port=7, advertised_host="log.example", advertised_port=8
    )
    assert configured.advertised == ("log.example", 8)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_the_advertised_address_is_never_a_wildcard(host: str) -> None:
    with pytest.raises(ConfigError, match="connect") as caught:
        settings(listen_host=host)
    assert "--advertise" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_id", -1),
        ("node_id", 2**31),
        ("listen_port", 65_536),
        ("advertised_port", -1),
        ("durability", "maybe"),
        ("num_partitions", 0),
        ("num_partitions", 1_001),
        ("topics_max", 0),
        ("partitions_max", 0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        settings(**{name: value})
