"""Writes count once, however often the network fails; a token is sent to its server only."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from decimal import Decimal

import pytest

from faults.serve.http import Http
from faults.wait import until
from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.errors import ValueDoesNotFit
from headrace.remote import InvalidRequest, NotLoggedIn, OutcomeUnknown, Remote, Unreachable
from headrace.remote.values import body_of
from tests.remote.clients import new_remote
from tests.remote.market import Fruit
from tests.remote.unreliable_network import Network


def _prices(server: Http, app: App, key: str, *, expected: int) -> list[int]:
    """Wait for the expected records. The response to a commit may come before its markers are synced."""
    until(lambda: len(_visible_prices(server, app, key)) >= expected, f"{expected} records of {key!r}")
    return _visible_prices(server, app, key)


def _visible_prices(server: Http, app: App, key: str) -> list[int]:
    document = server.get(f"/v1/topics/{app.topics[0].name}/records", limit=10_000).expect(200)
    assert document["at_end"]
    return [int(record["value"]["price"]) for record in document["records"] if record["key"] == key]


def _heal(network: Network, lost: int) -> None:
    """Open the network again after a response was lost or a connection was refused."""
    until(
        lambda: network.dropped_responses + network.refused > lost,
        "a lost response or a refused connection",
        pause_s=0.005,
    )
    network.set_mode("open")


def test_a_write_with_a_lost_response_is_repeated_and_counts_once(
    server: Http, app: App, network: Network
) -> None:
    topic, chance, repeated = app.topics[0].name, random.Random(4), 0
    with new_remote(server, network, patience_s=60) as remote:
        for number in range(8):
            lost = network.dropped_responses + network.refused
            network.set_mode(chance.choice(["cut", "deaf"]) if number else "deaf")
            healer = threading.Thread(target=_heal, args=(network, lost))
            healer.start()
            repeated += remote.topic(topic).write(Fruit("once", Decimal(number))).repeated
            healer.join()
    assert _prices(server, app, "once", expected=8) == list(range(8))
    assert repeated > 0
    assert network.dropped_responses > 0


def test_an_unknown_outcome_has_the_request_id_for_a_repeat(server: Http, app: App, network: Network) -> None:
    topic = app.topics[0].name
    network.set_mode("deaf")
    with (
        new_remote(server, network, patience_s=0.3) as remote,
        pytest.raises(OutcomeUnknown) as unknown,
    ):
        remote.topic(topic).write(Fruit("doubt", Decimal(1)))
    with new_remote(server) as remote:
        written = remote.topic(topic).write(Fruit("doubt", Decimal(1)), request=unknown.value.request)
        assert _prices(server, app, "doubt", expected=1) == [1]
        with pytest.raises(InvalidRequest) as other:
            remote.topic(topic).write(Fruit("doubt", Decimal(2)), request=unknown.value.request)
        assert other.value.code == "HR-SERVE-KEY-REUSED"
        assert written.records[0].offset >= 0


def test_a_restarted_import_writes_nothing_twice(remote: Remote, server: Http, app: App) -> None:
    topic = remote.topic(app.topics[0].name)
    values = [Fruit("import", Decimal(number)) for number in range(25)]

    def interrupted_values(count: int) -> Iterator[Fruit]:
        yield from values[:count]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.write_many(interrupted_values(15), request="import-1", size=10)
    repeated_call = topic.write_many(values, request="import-1", size=10)
    assert (repeated_call.records, repeated_call.requests, repeated_call.repeated) == (25, 3, 1)
    assert _prices(server, app, "import", expected=25) == list(range(25))
    with new_remote(server) as other:
        # The token of the result covers all writes.
        assert other.view(app.views[0].name).get("import", after=repeated_call)["price"] == 24  # type: ignore[index]
    with pytest.raises(InvalidRequest) as refused:
        topic.write_many([Fruit("import", Decimal(25)), {"colour": "red"}], request="import-2", size=1)
    assert refused.value.detail.startswith("1 earlier records are written; repeat the call")
    with pytest.raises(ConfigError):
        topic.write_many(values, size=0)


def test_an_unreachable_server_is_reported_within_the_retry_limit() -> None:
    with Remote("http://127.0.0.1:9", patience_s=0.2) as remote:
        with pytest.raises(Unreachable) as caught:
            remote.views()
        assert caught.value.hint
        with pytest.raises(Unreachable) as unsent:
            remote.topic("x").write({"a": 1})
        assert not isinstance(unsent.value, OutcomeUnknown)


def test_a_token_is_never_shown_and_sent_only_over_safe_connections(server: Http, network: Network) -> None:
    token = "hr_" + "s" * 40
    with new_remote(server, network, token=token, patience_s=0.2) as remote:
        assert token not in repr(remote) + repr(vars(remote))
        with pytest.raises(NotLoggedIn) as refused:
            remote.views()
        assert token not in str(refused.value) + repr(refused.value)
    with_token = [line for line in bytes(network.received).split(b"\r\n") if token.encode() in line]
    assert [line.split(b":")[0].lower() for line in with_token] == [b"authorization"]
    with pytest.raises(ConfigError, match="unencrypted"):
        Remote("http://shop.example", token=token)
    with pytest.raises(ConfigError) as secret:
        Remote("http://user:geheim@127.0.0.1")
    assert "geheim" not in str(secret.value)
    with pytest.raises(ConfigError):
        Remote("http://127.0.0.1", token="hr_x\r\nHost: y")
    Remote("https://shop.example", token=token).close()
    Remote("http://shop.example", token=token, plain_text=True).close()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"a": Decimal("1.10"), "b": float("nan")}, b'{"a":1.10,"b":"NaN"}'),
        ({"a": b"\x00", "b": [None, True, 2**62]}, b'{"a":"AA==","b":[null,true,4611686018427387904]}'),
    ],
)
def test_values_are_encoded_as_in_the_log(value: object, written: bytes) -> None:
    assert body_of(value) == written


@pytest.mark.parametrize("value", [{"a": object()}, {1: 2}, {"a": Decimal("NaN")}, {"a": "\ud800"}])
def test_an_invalid_value_is_refused_before_it_is_sent(value: object) -> None:
    with pytest.raises(ValueDoesNotFit):
        body_of(value)
