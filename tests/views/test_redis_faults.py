"""The Redis store with a server that is silent, evicts, is demoted or lacks memory."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.servers.redis import RedisServer, running
from faults.servers.server import free_port
from faults.stores.redis import RedisFixture
from faults.wait import until
from headrace.model.kinds import Field, Scalar
from headrace.stores.errors import StoreDamaged, StoreError, StoreGone, StoreUnusable
from headrace.stores.position import ViewSchema
from headrace.stores.redis.reader import check_server
from headrace.stores.redis.writer import RedisWriter
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA

NOTES = ViewSchema((Field("key", Scalar("text"), False), Field("note", Scalar("text"), True)), ("key",))


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[RedisFixture]:
    with contextlib.closing(RedisFixture(tmp_path)) as created:
        yield created


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as created:
        yield created


@pytest.fixture
def driver(server: RedisServer) -> Iterator[StoreDriver]:
    server.client().flushall()
    with contextlib.closing(RedisWriter(server.url, "shop:", "sales")) as store:
        yield StoreDriver(store)


def test_a_stopping_follower_does_not_wait_for_a_silent_server(server: RedisServer) -> None:
    server.client().flushall()
    # This holds even if the address sets a long timeout.
    with contextlib.closing(RedisWriter(f"{server.url}?socket_timeout=300", "shop:", "sales")) as store:
        driver, result = StoreDriver(store), list[BaseException]()
        driver.serve()
        store.stop = threading.Event()

        def write() -> None:
            try:
                driver.apply(changes(SCHEMA, ("a", 1)))
            except BaseException as error:
                result.append(error)

        server.end(signal.SIGSTOP)
        try:
            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            store.stop.set()
            writer.join(60)
            assert not writer.is_alive()
        finally:
            server.end(signal.SIGCONT)
    (error,) = result
    assert isinstance(error, StoreGone)
    assert "no response" in str(error)


def test_a_follower_waits_for_a_server_demoted_during_a_batch(server: RedisServer) -> None:
    client = server.client()

    class Demoted(RedisWriter):
        def _commands(self, *commands: Any) -> Iterator[Any]:
            yield from super()._commands(*commands)
            until(lambda: any(int(item["multi"]) > 0 for item in client.client_list()), "the rows are there")
            client.execute_command("REPLICAOF", "127.0.0.1", "1")

    client.flushall()
    with contextlib.closing(Demoted(server.url, "shop:", "sales")) as store:
        driver = StoreDriver(store)
        driver.serve()
        try:
            with pytest.raises(StoreError, match="READONLY") as result:
                driver.apply(changes(SCHEMA, ("a", 1)))
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
    assert (type(result.value), result.value.retriable) == (StoreGone, True)
    assert client.exists("shop:sales") == 0


def test_a_server_that_may_evict_views_is_refused(server: RedisServer) -> None:
    client = server.client()
    client.config_set("maxmemory", "1gb")
    try:
        for policy, fits in (("noeviction", True), ("volatile-lru", True), ("allkeys-lru", False)):
            client.config_set("maxmemory-policy", policy)
            if fits:
                RedisWriter(server.url, "shop:", "sales").close()
                assert check_server(server.url).startswith("redis ")
                continue
            with pytest.raises(StoreUnusable, match=policy):
                RedisWriter(server.url, "shop:", "sales")
            with pytest.raises(StoreUnusable, match=policy):
                check_server(server.url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)


def test_a_server_that_evicted_a_view_is_refused(server: RedisServer, driver: StoreDriver) -> None:
    client = server.client()
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    client.config_set("maxmemory", "1gb")
    client.config_set("maxmemory-policy", "allkeys-random")
    try:
        client.delete("shop:sales")
        found = driver.store.state(Part.SERVING)
        assert found is not None
        assert "evicted" in found.fault
        with pytest.raises(StoreUnusable, match="allkeys-random"):
            driver.begin()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)
    driver.serve()


def test_health_checks_of_the_client_do_not_interrupt_a_transaction(backend: RedisFixture) -> None:
    """An address can enable health checks. A check during a transaction would cancel the transaction."""

    class Late(RedisWriter):
        def _commands(self, *commands: Any) -> Iterator[Any]:
            yield from super()._commands(*commands)
            self._server._connection.next_health_check = 0

    url = f"{backend.url}&health_check_interval=1&encoding=latin-1"
    with contextlib.closing(Late(url, "shop:", "sales")) as store:
        driver = StoreDriver(store)
        driver.serve()
        driver.apply(changes(SCHEMA, ("a€", 1)))
    assert backend.read() == (0, [("a€", 1)])


@pytest.mark.parametrize(("name", "text"), [("serving", "{}"), ("serving.shape", "[]"), ("epoch", "x")])
def test_changed_metadata_is_reported(backend: RedisFixture, name: str, text: str) -> None:
    with contextlib.closing(backend.open()) as store:
        driver = StoreDriver(store)
        driver.serve()
        backend.client.hset("{shop:sales}:headrace", name, text)
        with pytest.raises(StoreDamaged, match="cannot decode the metadata") as result:
            StoreDriver(store).store.state(Part.SERVING)
    assert "delete" in result.value.hint


def test_the_error_names_a_row_that_is_too_large_for_the_server(
    server: RedisServer, driver: StoreDriver
) -> None:
    driver.serve(NOTES)
    row = ("a", "x" * (3 << 20))
    server.client().config_set("client-query-buffer-limit", "1mb")
    try:
        with pytest.raises(StoreGone, match="client-query-buffer-limit"):
            driver.apply(changes(NOTES, row))
    finally:
        server.client().config_set("client-query-buffer-limit", "1gb")
    driver.apply(changes(NOTES, row))
    assert list(driver.store.rows()) == [row]


@contextlib.contextmanager
def node() -> Iterator[tuple[RedisServer, int]]:
    # Nodes talk to each other on a port ten thousand higher.
    port = next(item for item in iter(free_port, 0) if item < 55_000)
    words = ("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes")
    with running(*words) as created:
        yield created, port


def test_a_cluster_node_serves_its_slots_and_names_the_node_of_another_slot() -> None:
    with node() as (server, _), node() as (other, port):
        client = server.client()
        with pytest.raises(StoreGone, match="not served"):
            RedisWriter(server.url, "shop:", "sales")
        slot = {name: client.execute_command("CLUSTER", "KEYSLOT", f"shop:{name}") for name in "abcdefgh"}
        own_name, other_name = min(slot, key=slot.__getitem__), max(slot, key=slot.__getitem__)
        client.execute_command("CLUSTER", "ADDSLOTS", *range(slot[own_name] + 1))
        other.client().execute_command("CLUSTER", "ADDSLOTS", *range(slot[own_name] + 1, 16_384))
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "it", pause_s=0.05)
        with contextlib.closing(RedisWriter(server.url, "shop:", own_name)) as store:
            driver = StoreDriver(store)
            driver.serve()
            driver.apply(changes(SCHEMA, ("a", 1), ("b", 2)))
            driver.apply(changes(SCHEMA, deleted=(("b",),)))
            assert list(store.rows()) == [("a", 1)]
        with pytest.raises(StoreUnusable, match=f"another node holds the view.*:{port}"):
            RedisWriter(server.url, "shop:", other_name)
