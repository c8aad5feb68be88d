"""A PostgreSQL server that sleeps: its kernel answers for it, so that its connections stay, and nothing comes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops import served_postgres
from headrace.ops.errors import StoreUnreadable
from headrace.stores import Postgres
from headrace.views.errors import StoreGone
from headrace.views.postgres import patience
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE
from tests.support.postgres import PostgresServer
from tests.support.waiting import until
from tests.verify.test_topic_views import Order
from tests.views.postgres.looking import sql
from tests.views.seeing import following, produce
from tests.views.test_topic_views import record


@contextlib.contextmanager
def asleep(server: PostgresServer) -> Iterator[None]:
    server.signal_all(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal_all(signal.SIGCONT)


def test_who_is_to_end_does_not_wait_for_a_server_that_sleeps(server: PostgresServer, hand: Hand) -> None:
    hand.serve()
    hand.store.stop = threading.Event()
    told: list[BaseException] = []

    def write() -> None:
        try:
            hand.apply(changes(SHAPE, ("a", 1)))
        except BaseException as error:
            told.append(error)

    with asleep(server):
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        hand.store.stop.set()
        writer.join(60)
        assert not writer.is_alive()
    (error,) = told
    assert isinstance(error, StoreGone)
    assert "to stop" in str(error)


def test_a_server_that_sleeps_is_told_of_and_gone_on_with_when_it_wakes(
    server: PostgresServer,
    cluster: Cluster,
    fresh: Callable[[str], str],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "SILENT_S", 0.3)
    app, name = App("shop"), fresh("orders")
    cluster.ensure_topic(name, 1)
    # The shortest time that libpq knows.
    table = app.table(name, Order, key="order")
    view = app.view(name, table, store=Postgres(f"{url}?connect_timeout=2"))
    produce(cluster, name, [record("a")])
    with (
        following(cluster, view, [], tmp_path) as followed,
        following(cluster, app.view(f"{name}-beside", table), [], tmp_path) as beside,
    ):
        followed.until_state("following")
        with asleep(server):
            produce(cluster, name, [record("b")])
            followed.until_state("waiting", "no answer")
            # The others are not held up.
            beside.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
        until(lambda: sql(url, f'SELECT count(*) FROM "{name}"') == [(2,)], "the rows")
        assert followed.follower.status.rebuilds == 1


def test_a_statement_that_takes_its_time_is_waited_for(
    hand: Hand, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SILENT_S", 0.2)
    hand.serve()
    sql(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.7); RETURN NEW; END'",
    )
    sql(url, "CREATE TRIGGER slow BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION slow()")
    hand.apply(changes(SHAPE, ("a", 1)))
    assert list(hand.store.rows()) == [("a", 1)]


def test_a_proof_does_not_wait_for_ever_either(
    hand: Hand, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.serve()
    monkeypatch.setattr(served_postgres, "_SILENT_S", 0.2)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnreadable, match="cannot be read"):
            served_postgres.read_postgres(tmp_path, url, "public", "sales")
