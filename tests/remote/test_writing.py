"""Writes count once, however often the network fails; and a token goes to its server only."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from decimal import Decimal

import pytest

from headrace.app import App
from headrace.errors import ConfigError
from headrace.model.errors import ValueDoesNotFit
from headrace.remote import NotLoggedIn, OutcomeUnknown, Remote, Unfit, Unreachable
from headrace.remote.plain import body_of
from tests.remote.asking import asking
from tests.remote.cutting import Network
from tests.remote.market import Fruit
from tests.serve.http import Http
from tests.support.waiting import until


def _prices(server: Http, app: App, key: str, *, expected: int) -> list[int]:
    """A commit is answered before its markers are synced, so its records may show a moment later."""
    until(lambda: len(_visible_prices(server, app, key)) >= expected, f"{expected} records of {key!r}")
    return _visible_prices(server, app, key)


def _visible_prices(server: Http, app: App, key: str) -> list[int]:
    told = server.get(f"/v1/topics/{app.topics[0].name}/records", limit=10_000).expect(200)
    assert told["at_end"]
    return [int(one["value"]["price"]) for one in told["records"] if one["key"] == key]


def _heal(network: Network, lost: int) -> None:
    """After an answer was lost, or a connection refused."""
    until(lambda: network.swallowed + network.refused > lost, "something to go wrong", pause_s=0.005)
    network.be("open")


def test_a_write_whose_answer_is_lost_is_sent_again_and_counts_once(
    server: Http, app: App, network: Network
) -> None:
    topic, chance, repeated = app.topics[0].name, random.Random(4), 0
    with asking(server, network, patience_s=60) as remote:
        for number in range(8):
            lost = network.swallowed + network.refused
            network.be(chance.choice(["cut", "deaf"]) if number else "deaf")
            healing = threading.Thread(target=_heal, args=(network, lost))
            healing.start()
            repeated += remote.topic(topic).write(Fruit("once", Decimal(number))).repeated
            healing.join()
    assert _prices(server, app, "once", expected=8) == list(range(8))
    assert repeated > 0
    assert network.swallowed > 0


def test_an_unknown_outcome_has_the_id_to_ask_again_with(server: Http, app: App, network: Network) -> None:
    topic = app.topics[0].name
    network.be("deaf")
    with (
        asking(server, network, patience_s=0.3) as remote,
        pytest.raises(OutcomeUnknown) as unknown,
    ):
        remote.topic(topic).write(Fruit("doubt", Decimal(1)))
    with asking(server) as remote:
        written = remote.topic(topic).write(Fruit("doubt", Decimal(1)), request=unknown.value.request)
        assert _prices(server, app, "doubt", expected=1) == [1]
        with pytest.raises(Unfit) as other:
            remote.topic(topic).write(Fruit("doubt", Decimal(2)), request=unknown.value.request)
        assert other.value.code == "HR-SERVE-KEY-REUSED"
        assert written.records[0].offset >= 0


def test_an_import_that_is_begun_again_writes_nothing_twice(remote: Remote, server: Http, app: App) -> None:
    topic = remote.topic(app.topics[0].name)
    values = [Fruit("import", Decimal(number)) for number in range(25)]

    def some(count: int) -> Iterator[Fruit]:
        yield from values[:count]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        topic.write_many(some(15), request="import-1", size=10)
    again = topic.write_many(values, request="import-1", size=10)
    assert (again.records, again.requests, again.repeated) == (25, 3, 1)
    assert _prices(server, app, "import", expected=25) == list(range(25))
    with asking(server) as another:
        # Its token tells of all of them.
        assert another.view(app.views[0].name).get("import", after=again)["price"] == 24  # type: ignore[index]
    with pytest.raises(Unfit) as refused:
        topic.write_many([Fruit("import", Decimal(25)), {"colour": "red"}], request="import-2", size=1)
    assert refused.value.detail.startswith("1 before them are written; begin again")
    with pytest.raises(ConfigError):
        topic.write_many(values, size=0)


def test_nobody_there_is_told_within_the_patience() -> None:
    with Remote("http://127.0.0.1:9", patience_s=0.2) as remote:
        with pytest.raises(Unreachable) as nobody:
            remote.views()
        assert nobody.value.hint
        with pytest.raises(Unreachable) as unsent:
            remote.topic("x").write({"a": 1})
        assert not isinstance(unsent.value, OutcomeUnknown)


def test_a_token_is_shown_to_nobody_and_sent_over_safe_ways_only(server: Http, network: Network) -> None:
    token = "hr_" + "s" * 40
    with asking(server, network, token=token, patience_s=0.2) as remote:
        assert token not in repr(remote) + repr(vars(remote))
        with pytest.raises(NotLoggedIn) as refused:
            remote.views()
        assert token not in str(refused.value) + repr(refused.value)
    with_token = [line for line in bytes(network.seen).split(b"\r\n") if token.encode() in line]
    assert [line.split(b":")[0].lower() for line in with_token] == [b"authorization"]
    with pytest.raises(ConfigError, match="as it is"):
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
def test_values_are_written_as_the_log_has_them(value: object, written: bytes) -> None:
    assert body_of(value) == written


@pytest.mark.parametrize("value", [{"a": object()}, {1: 2}, {"a": Decimal("NaN")}, {"a": "\ud800"}])
def test_what_cannot_be_written_is_said_before_it_is_sent(value: object) -> None:
    with pytest.raises(ValueDoesNotFit):
        body_of(value)
