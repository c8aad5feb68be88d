"""No broker: say where, why and what next, and nothing else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.runner import COMMAND, Headrace
from tests.support.server import answers, free_port, spawn
from tests.support.waiting import until, watched_process


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


def test_a_port_that_does_not_speak_kafka_is_told_from_one_that_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        headrace = Headrace(f"127.0.0.1:{silent.getsockname()[1]}")
        for words in (["topic", "list"], ["lag"]):
            result = headrace.run(*words, "-X", "socket.timeout.ms=300")
            assert (result.code, result.out) == (3, "")
            assert f"no answer from {headrace.bootstrap} [HR-CLI-UNREACHABLE]" in result.err
            assert "is it a Kafka broker?" in result.err


def test_a_broker_that_names_an_address_that_does_not_work_is_found_out(tmp_path: Path) -> None:
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
        assert f"{headrace.bootstrap} answers, but the brokers it names do not" in result.err
        assert f"127.0.0.1:{dead}: connection refused" in result.err
        assert "--advertise" in result.err
    finally:
        server.kill()
        server.wait()
