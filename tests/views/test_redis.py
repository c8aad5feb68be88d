"""The Redis store: what users read, faults and recovery, and fenced followers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.servers.redis import RedisServer, running
from faults.stores.redis import RedisFixture
from faults.views.follower_thread import following
from faults.views.scripted_flow import Sale, ScriptedFlow
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.codec.codec import new_codec
from headrace.model.kinds import Digits, Field, List, Scalar
from headrace.model.schema import Schema
from headrace.stores import Redis
from headrace.stores.errors import (
    PositionMoved,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreGone,
    StoreReplaced,
    StoreUnusable,
)
from headrace.stores.position import ViewSchema
from headrace.stores.redis.layout import Keys
from headrace.stores.redis.reader import RedisReader
from headrace.stores.redis.writer import RedisWriter
from headrace.stores.registry import open_reader, open_writer
from headrace.stores.rows import Row, RowDecoder
from headrace.stores.writer import Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA
from tests.views.test_flow_views import row

Fresh = Callable[[str], str]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[RedisFixture]:
    with contextlib.closing(RedisFixture(tmp_path)) as created:
        yield created


@pytest.fixture
def driver(backend: RedisFixture) -> Iterator[StoreDriver]:
    with contextlib.closing(backend.open()) as store:
        yield StoreDriver(store)


@pytest.fixture(scope="module")
def faulty_server() -> Iterator[RedisServer]:
    """A server with an append-only file, for tests that stop it, kill it, or fill its memory."""
    with running("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def server(faulty_server: RedisServer) -> RedisServer:
    faulty_server.client().flushall()
    return faulty_server


# Keys as users see them


def test_a_row_is_a_field_with_its_key_and_its_json_as_in_the_log(
    backend: RedisFixture, driver: StoreDriver
) -> None:
    fields = (
        Field("product", Scalar("text"), False),
        Field("minute", Scalar("time"), False),
        Field("amount", Digits(), True),
        Field("share", Scalar("float"), True),
        Field("raw", Scalar("bytes"), True),
        Field("tags", List(Scalar("text")), True),
        Field("is it", Scalar("bool"), True),
        Field("many", Scalar("int"), True),
    )
    values: list[dict[str, Any]] = [
        {"product": "p\0 ä", "minute": "2026-01-31T12:00:00.000000Z", "amount": 12345678901.5, "share": "NaN",
         "raw": "AP8=", "tags": ["a", '"'], "is it": True, "many": -(2**63)},
        {"product": "", "minute": "0001-01-01T00:00:00.000000Z", "amount": None, "share": "-Infinity",
         "raw": None, "tags": None, "is it": None, "many": None},
    ]  # fmt: skip
    codec = new_codec(Schema("row", fields))
    for key in (("product",), ("minute", "product"), ("many",), ("is it",)):
        view_schema = ViewSchema(fields, key)
        decoder = RowDecoder(view_schema, key)
        raws = [codec.encode(codec.decode(json.dumps(value).encode())) for value in values]
        found = [codec.decode(raw) for raw in raws if codec.decode(raw)[key[0]] is not None]
        driver.serve(view_schema)
        driver.apply(changes(view_schema, *(decoder.row(codec.encode(row)) for row in found)))
        expected = {codec.key(key).encode(row): codec.encode(row) for row in found}
        assert backend.client.hgetall("shop:sales") == expected
        driver.apply(
            changes(view_schema, deleted=tuple(decoder.key(codec.key(key).encode(row)) for row in found))
        )
        assert backend.client.exists("shop:sales") == 0


def test_the_metadata_has_the_position_and_the_number_of_rows(
    backend: RedisFixture, driver: StoreDriver
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 2)))
    assert sorted(backend.client.keys()) == [b"shop:sales", b"{shop:sales}:headrace"]
    metadata = backend.client.hgetall("{shop:sales}:headrace")
    assert json.loads(metadata[b"serving"])["offsets"] == {"0": 10}
    assert (metadata[b"serving.rows"], metadata[b"epoch"], metadata[b"format"]) == (b"2", b"1", b"1")


def test_all_keys_of_a_view_are_in_one_slot_of_a_cluster(backend: RedisFixture) -> None:
    def tagged(key: str) -> str:
        """The part of the key that decides its slot in a Redis Cluster."""
        begin = key.find("{")
        end = key.find("}", begin + 1)
        return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key

    for prefix in ("shop:", "", "{shop}:", "a:{b}:c:"):
        keys = Keys(prefix, "sales")
        assert len({tagged(key) for key in (*keys.all_rows(), keys.moving, keys.metadata)}) == 1


def test_a_batch_of_many_rows_becomes_visible_at_once(backend: RedisFixture, driver: StoreDriver) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, *((f"k{number}", number) for number in range(12_000))))
    driver.apply(changes(SCHEMA, deleted=tuple((f"k{number}",) for number in range(1, 12_000))))
    assert backend.read() == (1, [("k0", 0)])


def test_a_reader_reads_views_of_any_size(backend: RedisFixture, driver: StoreDriver) -> None:
    with contextlib.closing(RedisReader(backend.url, "shop:", "sales")) as reader:
        assert reader.views() == []
        driver.begin()
        assert [view.part for view in reader.views()] == [Part.BUILDING]
        for count in (3, 12_000):
            driver.serve()
            rows: list[Row] = [(f"k{number:05}", number) for number in range(count)]
            driver.apply(changes(SCHEMA, *rows))
            assert reader.count("sales") == count
            with reader.scan("sales", 60) as (names, found):
                assert (names, sorted(found)) == (["key", "number"], rows)
        backend.client.hset("shop:sales", "k00000", "garbage")
        with pytest.raises(StoreDamaged, match="garbage"), reader.scan("sales", 60) as (_, found):
            list(found)


# Faults


def test_foreign_content_is_refused_and_not_changed(backend: RedisFixture) -> None:
    backend.client.hset("shop:sales", "theirs", "x")
    with (
        contextlib.closing(backend.open()) as store,
        pytest.raises(StoreForeign, match="no follower created"),
    ):
        StoreDriver(store).begin()
    backend.client.set("shop:other", "theirs")
    with pytest.raises(StoreForeign, match="exists but is not a hash"):
        backend.open("other")
    backend.client.hset("{shop:new}:headrace", "format", 99)
    with pytest.raises(StoreUnusable, match="format 99"):
        backend.open("new")
    assert (backend.client.hgetall("shop:sales"), backend.client.get("shop:other")) == (
        {b"theirs": b"x"},
        b"theirs",
    )


def test_rows_changed_by_another_program_are_detected(backend: RedisFixture, driver: StoreDriver) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1), ("b", 2)))
    backend.client.delete("shop:sales")
    state = driver.store.state(Part.SERVING)
    assert state is not None
    assert "found 0 rows instead of 2" in state.fault
    with pytest.raises(PositionMoved, match="found 0 rows"):
        driver.apply(changes(SCHEMA, ("c", 3)))
    assert backend.client.exists("shop:sales") == 0


def test_a_wiped_or_restored_store_is_claimed_again(backend: RedisFixture, driver: StoreDriver) -> None:
    driver.serve()
    kept = {key: backend.client.dump(key) for key in backend.client.scan_iter()}
    driver.owner = driver.store.claim("again", 2, driver.owner)
    backend.client.flushdb()
    with pytest.raises(StoreReplaced, match=r"is none, but epoch 2"):
        driver.begin()
    for key, dumped in kept.items():
        backend.client.restore(key, 0, dumped)
    with pytest.raises(StoreReplaced, match=r"epoch 1.*epoch 2"):
        driver.apply(changes(SCHEMA, ("a", 1)))
    driver.owner = driver.store.claim("again", 2, driver.owner)
    driver.apply(changes(SCHEMA, ("a", 1)))
    assert backend.read() == (0, [("a", 1)])


def test_repeated_changes_by_another_program_are_reported(backend: RedisFixture) -> None:
    class ConcurrentlyChanged(RedisWriter):
        def _commands(self, *commands: Any) -> Iterator[Any]:
            yield from super()._commands(*commands)
            backend.client.hset("shop:sales", "a", "x")

    with contextlib.closing(ConcurrentlyChanged(backend.url, "shop:", "sales")) as store:
        driver = StoreDriver(store)
        driver.serve()
        with pytest.raises((StoreBusy, PositionMoved)) as result:
            driver.apply(changes(SCHEMA, ("a", 1)))
    assert result.value.retriable


def test_a_server_without_memory_applies_whole_batches_or_none(server: RedisServer) -> None:
    client = server.client()
    with contextlib.closing(RedisWriter(server.url, "shop:", "sales")) as store:
        driver = StoreDriver(store)
        driver.serve()
        driver.apply(changes(SCHEMA, *((f"k{number}", number) for number in range(100))))
        at = driver.position
        driver.begin()
        driver.apply(changes(SCHEMA, ("built", 1)), Part.BUILDING)
        built, driver.position = driver.position, at
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull) as result:
                driver.apply(
                    changes(
                        SCHEMA, *((f"new{number}", number) for number in range(2_000)), deleted=(("k1",),)
                    )
                )
            assert result.value.retriable
            found = store.state(Part.SERVING)
            assert found is not None
            assert (found.position, found.fault, client.hlen("shop:sales")) == (at, "", 100)
            # Commands that free memory still work.
            driver.apply(changes(SCHEMA, deleted=(("k1",),)))
            assert client.hlen("shop:sales") == 99
            store.swap(driver.fence, keep=True)
            store.swap_back(driver.fence)
            assert client.hlen("shop:sales") == 99
            store.swap_back(driver.fence)
            found = store.state(Part.SERVING)
            assert found is not None
            assert (found.position, found.fault, client.hlen("shop:sales")) == (built, "", 1)
        finally:
            client.config_set("maxmemory", 0)


def test_server_errors_become_store_errors_that_say_whether_to_retry(server: RedisServer) -> None:
    client = server.client()

    def error_of(address: str = server.url) -> StoreError:
        with (
            pytest.raises(StoreError) as result,
            contextlib.closing(RedisWriter(address, "shop:", "v")) as store,
        ):
            StoreDriver(store)
        assert result.value.hint
        assert "s3cr3t" not in str(result.value)
        return result.value

    for address in (
        "localhost:6379",
        "redis://:s3cr3t@host:port/",
        "redis://:s3cr3t/more@host:6379/",
        f"{server.url}?nonsense=1",
    ):
        assert isinstance(error_of(address), StoreUnusable)
    away = error_of("redis://me:s3cr3t@127.0.0.1:1/0")
    assert (type(away), away.retriable) == (StoreGone, True)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        replica = error_of()
        assert (type(replica), replica.retriable) == (StoreGone, True)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    client.config_set("min-replicas-to-write", 1)
    try:
        assert isinstance(error_of(), StoreGone)
    finally:
        client.config_set("min-replicas-to-write", 0)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">s3cr3t", "~*", "+@read", "+@connection")
    try:
        assert isinstance(error_of(f"{server.url}?username=reader&password=s3cr3t"), StoreUnusable)
        assert isinstance(error_of(f"{server.url}?username=reader&password=s3cr3t2"), StoreUnusable)
    finally:
        client.execute_command("ACL", "DELUSER", "reader")


def test_the_permissions_in_the_docs_suffice_for_a_login(backend: RedisFixture) -> None:
    rights = ("+@read", "+@write", "+@transaction", "+@scripting", "+@connection", "+select", "+info")
    backend.client.execute_command(
        "ACL", "SETUSER", "follower", "on", ">s3cr3t", "~shop:*", "~{shop:*", *rights
    )
    try:
        url = f"{backend.url}&username=follower&password=s3cr3t"
        with contextlib.closing(RedisWriter(url, "shop:", "sales")) as store:
            driver = StoreDriver(store)
            driver.serve()
            driver.apply(changes(SCHEMA, ("a", 1), ("b", 2)))
            driver.apply(changes(SCHEMA, deleted=(("b",),)))
            driver.begin()
            store.drop(Part.BUILDING, driver.fence)
            driver.serve(keep=True)
            store.swap_back(driver.fence)
            store.drop(Part.KEPT, driver.fence)
            store.request_rebuild()
            assert list(store.rows()) == [("a", 1)]
    finally:
        backend.client.execute_command("ACL", "DELUSER", "follower")


# Under a follower


class FollowedView:
    """A flow that a test drives, and its view in Redis."""

    def __init__(self, cluster: Cluster, name: str, server: RedisServer) -> None:
        self.flow = ScriptedFlow(cluster, name)
        self.view = self.flow.app.view(f"{name}-redis", self.flow.topic, store=Redis(server.url))
        self.server = server
        self.flow.begin()

    def rows(self) -> dict[str, tuple[Any, ...]] | None:
        found = self.server.client().hgetall(f"shop:{self.view.name}")
        return {key.decode(): tuple(json.loads(value).values()) for key, value in found.items()}

    def expect(self) -> None:
        until(lambda: self.rows() == self.flow.derived.rows, f"{self.flow.derived.rows}", pause_s=0.01)


def test_a_view_catches_up_after_its_server_was_stopped_killed_wiped_or_restored(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, server: RedisServer
) -> None:
    created = FollowedView(cluster, fresh("sales"), server)
    created.flow.batch([row("a"), row("b")])
    with following(cluster, created.view, [created.flow.flow], tmp_path) as followed:
        created.expect()
        # The server is killed, and restarted with its data.
        server.end()
        followed.until_state("waiting", "no response")
        created.flow.batch([row("c")])
        server.start()
        created.expect()
        assert followed.follower.status.rebuilds == 1
        # The data is deleted, and no new records arrive.
        server.client().flushall()
        created.expect()
        assert followed.follower.status.rebuilds == 2
        # The key with the rows is deleted.
        server.client().delete(f"shop:{created.view.name}")
        created.expect()
        until(lambda: followed.follower.status.rebuilds == 3, "the rebuild")
        followed.until_state("following")
        # An older state is restored, and no new records arrive.
        kept = {key: server.client().dump(key) for key in server.client().scan_iter()}
        created.flow.batch([row("d"), ("a", None)])
        created.expect()
        older = server.client().pipeline(transaction=True)
        for key, dumped in kept.items():
            older.restore(key, 0, dumped, replace=True)
        older.execute()
        created.expect()
        assert followed.follower.status.rebuilds == 3
        # The server is stopped by SIGSTOP.
        server.end(signal.SIGSTOP)
        created.flow.batch([row("e")])
        server.end(signal.SIGCONT)
        created.expect()
        # The server is killed, and restarted without its data.
        server.end()
        server.delete_append_only_files()
        server.start()
        created.expect()
        assert followed.follower.status.rebuilds == 4


ZOMBIE = """
import os, signal, sys
from headrace.stores.errors import StaleWriter
from headrace.stores.redis.writer import RedisWriter
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA

class Sleepy(RedisWriter):
    def _commands(self, *given):
        yield from super()._commands(*given)
        print("before EXEC", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

store = Sleepy(sys.argv[1], "shop:", "sales")
driver = StoreDriver(store)
driver.serve()
try:
    driver.apply(changes(SCHEMA, *((f"zombie{n}", n) for n in range(2_000))))
except StaleWriter as error:
    print(error.message, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_zombie_whose_batch_has_reached_the_server_changes_nothing(
    backend: RedisFixture, end: signal.Signals
) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ZOMBIE, backend.url], stdout=subprocess.PIPE, text=True)
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "before EXEC\n"
    with contextlib.closing(backend.open()) as store:
        successor = StoreDriver(store)
        successor.apply(changes(SCHEMA, ("a", 1)))
        os.kill(zombie.pid, end)
        result = zombie.stdout.read()
        zombie.wait()
        zombie.stdout.close()
        assert ("epoch 1 " in result and "epoch 2 " in result) == (end is signal.SIGCONT)
        assert backend.read() == (0, [("a", 1)])
        successor.apply(changes(SCHEMA, ("b", 2)))
    assert backend.read() == (1, [("a", 1), ("b", 2)])


def test_a_view_is_opened_by_its_declaration(backend: RedisFixture, tmp_path: Path) -> None:
    app = App("shop")
    topic = app.topic("sales", Sale, key="product")
    plain = app.view("plain", topic, store=Redis(backend.url))
    other = app.view("other", topic, store=Redis(backend.url, prefix="{cache}:"))
    for view, key in ((plain, "shop:plain"), (other, "{cache}:other")):
        with contextlib.closing(open_writer(view, app.name, tmp_path)) as store:
            driver = StoreDriver(store)
            driver.serve()
            driver.apply(changes(SCHEMA, ("a", 1)))
        assert backend.client.hget(key, "a") == b'{"key":"a","number":1}'
        reader = open_reader(view, app.name, tmp_path)
        assert reader is not None
        with contextlib.closing(reader):
            assert [(view.view, view.state.position.batch) for view in reader.views()] == [(view.name, 0)]
