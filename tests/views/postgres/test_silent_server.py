"""A PostgreSQL server that is stopped: its kernel keeps the connections open, and no response comes."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from faults.servers.postgres import PostgresServer
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops.verify import postgres_snapshot
from headrace.ops.verify.errors import StoreUnreadable
from headrace.stores import Postgres
from headrace.stores.errors import StoreGone
from headrace.stores.postgres import session
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.verify.test_topic_views import Order
from tests.views.postgres.database import sql
from tests.views.test_topic_views import record


@contextlib.contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    server.signal_all(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal_all(signal.SIGCONT)


def test_a_stopping_follower_does_not_wait_for_a_silent_server(
    server: PostgresServer, driver: StoreDriver
) -> None:
    driver.serve()
    driver.store.stop = threading.Event()
    result: list[BaseException] = []

    def write() -> None:
        try:
            driver.apply(changes(SCHEMA, ("a", 1)))
        except BaseException as error:
            result.append(error)

    with stopped(server):
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        driver.store.stop.set()
        writer.join(60)
        assert not writer.is_alive()
    (error,) = result
    assert isinstance(error, StoreGone)
    assert "must stop" in str(error)


def test_a_silent_server_is_reported_and_used_again_when_it_responds(
    server: PostgresServer,
    cluster: Cluster,
    fresh: Callable[[str], str],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "PROBE_AFTER_S", 0.3)
    app, name = App("shop"), fresh("orders")
    cluster.ensure_topic(name, 1)
    # The shortest time that libpq knows.
    table = app.table(name, Order, key="order")
    view = app.view(name, table, store=Postgres(f"{url}?connect_timeout=2"))
    produce(cluster, name, [record("a")])
    with (
        following(cluster, view, [], tmp_path) as followed,
        following(cluster, app.view(f"{name}-beside", table), [], tmp_path) as other_view,
    ):
        followed.until_state("following")
        with stopped(server):
            produce(cluster, name, [record("b")])
            followed.until_state("waiting", "no response")
            # The others are not delayed.
            other_view.expect({"a": ("a", 1, ""), "b": ("b", 1, "")})
        until(lambda: sql(url, f'SELECT count(*) FROM "{name}"') == [(2,)], "the rows")
        assert followed.follower.status.rebuilds == 1


def test_a_follower_waits_for_a_slow_statement(
    driver: StoreDriver, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PROBE_AFTER_S", 0.2)
    driver.serve()
    sql(
        url,
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.7); RETURN NEW; END'",
    )
    sql(url, "CREATE TRIGGER slow BEFORE INSERT ON sales FOR EACH ROW EXECUTE FUNCTION slow()")
    driver.apply(changes(SCHEMA, ("a", 1)))
    assert list(driver.store.rows()) == [("a", 1)]


def test_verify_does_not_wait_forever_for_a_silent_server(
    driver: StoreDriver, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.serve()
    monkeypatch.setattr(postgres_snapshot, "_SILENT_S", 0.2)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE sales IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnreadable, match="cannot read"):
            postgres_snapshot.read_postgres(tmp_path, url, "public", "sales")
