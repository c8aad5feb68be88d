"""No broker: say where, why and what next, and nothing else."""

from __future__ import annotations

import json

import pytest

from tests.cli.runner import Headrace
from tests.support.server import free_port


@pytest.fixture
def away() -> Headrace:
    return Headrace(f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["group", "list"],
        ["lag"],
        ["consume", "t"],
        ["consume", "t", "-g", "g"],
        ["produce", "t"],
        ["group", "offset-delete", "g", "-t", "t", "--yes"],
    ],
)
def test_a_broker_that_is_not_there_is_said_with_address_reason_and_next_step(
    away: Headrace, words: list[str]
) -> None:
    result = away.run(*words)
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines() == [
        f"error: no broker answers at {away.bootstrap} [HR-CLI-UNREACHABLE]",
        f"  detail: {away.bootstrap}: connection refused",
        "  hint: start one with: headrace broker --data ./headrace-data; or name another with -b HOST:PORT",
    ]


def test_with_json_the_error_is_json_too(away: Headrace) -> None:
    result = away.run("topic", "list", "--json")
    assert json.loads(result.err)["error"]["code"] == "HR-CLI-UNREACHABLE"


def test_the_flag_wins_over_the_property_and_that_over_the_environment(away: Headrace) -> None:
    def asked(*words: str, **env: str) -> str:
        return away.run("topic", "list", *words, env=env).err.splitlines()[0].split()[5]

    assert asked() == away.bootstrap
    assert asked(HEADRACE_BOOTSTRAP_SERVERS="", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:3") == "127.0.0.1:3"
    assert asked("-X", "bootstrap.servers=127.0.0.1:2") == "127.0.0.1:2"
    assert asked("-X", "bootstrap.servers=127.0.0.1:2", "-b", "127.0.0.1:1") == "127.0.0.1:1"
    before = away.run("-b", "127.0.0.1:4", "topic", "list")
    assert "127.0.0.1:4" in before.err
    both = away.run("-b", "127.0.0.1:4", "topic", "list", "-b", "127.0.0.1:5")
    assert "127.0.0.1:5" in both.err


def test_a_property_that_the_client_does_not_know_is_the_users_mistake(headrace: Headrace) -> None:
    result = headrace.run("topic", "list", "-X", "no.such.property=1")
    assert result.code == 2
    assert "no.such.property" in result.err
