"""Without a broker, a command reports the address, the reason and the next step, and nothing else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from faults.servers.server import answers, free_port, spawn
from faults.wait import until, watched_process
from tests.cli.runner import COMMAND, Headrace


@pytest.fixture
def without_broker() -> Headrace:
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
def test_an_unreachable_broker_is_reported_with_address_reason_and_next_step(
    without_broker: Headrace, words: list[str]
) -> None:
    result = without_broker.run(*words)
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines() == [
        f"error: no broker responds at {without_broker.bootstrap} [HR-CLI-UNREACHABLE]",
        f"  detail: {without_broker.bootstrap}: connection refused",
        "  hint: start an app with: headrace run MODULE:APP; or a broker with: headrace broker; or set another address"
        " with -b HOST:PORT or the setting log.listen",
    ]


def test_with_json_the_error_is_json_too(without_broker: Headrace) -> None:
    result = without_broker.run("topic", "list", "--json")
    assert json.loads(result.err)["error"]["code"] == "HR-CLI-UNREACHABLE"


def test_the_flag_overrides_the_property_which_overrides_the_environment(without_broker: Headrace) -> None:
    def contacted_broker(*words: str, **env: str) -> str:
        return without_broker.run("topic", "list", *words, env=env).err.splitlines()[0].split()[5]

    assert contacted_broker() == without_broker.bootstrap
    assert (
        contacted_broker(HEADRACE_BOOTSTRAP_SERVERS="", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:3")
        == "127.0.0.1:3"
    )
    assert contacted_broker("-X", "bootstrap.servers=127.0.0.1:2") == "127.0.0.1:2"
    assert contacted_broker("-X", "bootstrap.servers=127.0.0.1:2", "-b", "127.0.0.1:1") == "127.0.0.1:1"
    before = without_broker.run("-b", "127.0.0.1:4", "topic", "list")
    assert "127.0.0.1:4" in before.err
    both = without_broker.run("-b", "127.0.0.1:4", "topic", "list", "-b", "127.0.0.1:5")
    assert "127.0.0.1:5" in both.err


def test_an_unknown_client_property_is_a_usage_error(headrace: Headrace) -> None:
    result = headrace.run("topic", "list", "-X", "no.such.property=1")
    assert result.code == 2
    assert "no.such.property" in result.err


def test_a_port_without_kafka_and_a_closed_port_have_different_errors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        headrace = Headrace(f"127.0.0.1:{silent.getsockname()[1]}")
        for words in (["topic", "list"], ["lag"]):
            result = headrace.run(*words, "-X", "socket.timeout.ms=300")
            assert (result.code, result.out) == (3, "")
            assert f"no response from {headrace.bootstrap} [HR-CLI-UNREACHABLE]" in result.err
            assert "check that it is a Kafka broker" in result.err


def test_an_advertised_address_that_does_not_work_is_reported(tmp_path: Path) -> None:
    port, dead = free_port(), free_port()
    words = [
        "broker",
        "--listen",
        f"127.0.0.1:{port}",
        "--advertise",
        f"127.0.0.1:{dead}",
        "--data",
        tmp_path / "d",
    ]
    server = spawn([COMMAND, *words], tmp_path / "log")
    try:
        with watched_process(server, "headrace broker", tmp_path / "log"):
            until(lambda: answers(port), "the broker answers")
        headrace = Headrace(f"127.0.0.1:{port}")
        result = headrace.run("topic", "create", "t", "-X", "socket.timeout.ms=1000")
        assert result.code == 3
        assert f"{headrace.bootstrap} responds, but the brokers it advertises do not" in result.err
        assert f"127.0.0.1:{dead}: connection refused" in result.err
        assert "--advertise" in result.err
    finally:
        server.kill()
        server.wait()
