"""Views in Redis: what users read, what goes wrong and how it heals, and zombies that change nothing."""

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

from bench.faults.flow_by_hand import FlowByHand, Sale
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.kinds import Digits, Field, Many, Plain
from headrace.model.schema import Schema
from headrace.model.values import Codec
from headrace.stores import Redis
from headrace.views.errors import (
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
from headrace.views.opening import open_reader, open_store
from headrace.views.position import Shape
from headrace.views.redis.checking import check
from headrace.views.redis.keys import Keys
from headrace.views.redis.reading import RedisReader
from headrace.views.redis.store import RedisStore
from headrace.views.rows import Row, RowDecoder
from headrace.views.store import Part
from tests.contract.see_redis import SeeRedis
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE
from tests.support.redis import RedisServer, running
from tests.support.waiting import until
from tests.views.seeing import following
from tests.views.test_flow_views import row

Fresh = Callable[[str], str]


@pytest.fixture
def see(tmp_path: Path) -> Iterator[SeeRedis]:
    with contextlib.closing(SeeRedis(tmp_path)) as made:
        yield made


@pytest.fixture
def hand(see: SeeRedis) -> Iterator[Hand]:
    with contextlib.closing(see.open()) as store:
        yield Hand(store)


@pytest.fixture(scope="module")
def harmed() -> Iterator[RedisServer]:
    """A server that is stopped, killed and starved; with what it has in an append-only file."""
    with running("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def server(harmed: RedisServer) -> RedisServer:
    harmed.client().flushall()
    return harmed


# What users meet


def test_a_row_is_a_field_with_its_key_and_its_json_as_in_the_log(see: SeeRedis, hand: Hand) -> None:
    fields = (
        Field("product", Plain("text"), False),
        Field("minute", Plain("time"), False),
        Field("amount", Digits(), True),
        Field("share", Plain("float"), True),
        Field("raw", Plain("bytes"), True),
        Field("tags", Many(Plain("text")), True),
        Field("is it", Plain("bool"), True),
        Field("many", Plain("int"), True),
    )
    values: list[dict[str, Any]] = [
        {"product": "p\0 ä", "minute": "2026-01-31T12:00:00.000000Z", "amount": 12345678901.5, "share": "NaN",
         "raw": "AP8=", "tags": ["a", '"'], "is it": True, "many": -(2**63)},
        {"product": "", "minute": "0001-01-01T00:00:00.000000Z", "amount": None, "share": "-Infinity",
         "raw": None, "tags": None, "is it": None, "many": None},
    ]  # fmt: skip
    codec = Codec(Schema("row", fields))
    for key in (("product",), ("minute", "product"), ("many",), ("is it",)):
        shape = Shape(fields, key)
        decoder = RowDecoder(shape, key)
        raws = [codec.encode(codec.decode(json.dumps(one).encode())) for one in values]
        found = [codec.decode(raw) for raw in raws if codec.decode(raw)[key[0]] is not None]
        hand.serve(shape)
        hand.apply(changes(shape, *(decoder.row(codec.encode(one)) for one in found)))
        expected = {codec.key(key).encode(one): codec.encode(one) for one in found}
        assert see.client.hgetall("shop:sales") == expected
        hand.apply(changes(shape, gone=tuple(decoder.key(codec.key(key).encode(one)) for one in found)))
        assert see.client.exists("shop:sales") == 0


def test_position_and_rows_are_told_beside_each_other(see: SeeRedis, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 2)))
    assert sorted(see.client.keys()) == [b"shop:sales", b"{shop:sales}:headrace"]
    noted = see.client.hgetall("{shop:sales}:headrace")
    assert json.loads(noted[b"serving"])["offsets"] == {"0": 10}
    assert (noted[b"serving.rows"], noted[b"epoch"], noted[b"format"]) == (b"2", b"1", b"1")


def test_all_keys_of_a_view_are_in_one_slot_of_a_cluster(see: SeeRedis) -> None:
    def tagged(key: str) -> str:
        """What a cluster goes by."""
        begin = key.find("{")
        end = key.find("}", begin + 1)
        return key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key

    for prefix in ("shop:", "", "{shop}:", "a:{b}:c:"):
        keys = Keys(prefix, "sales")
        assert len({tagged(one) for one in (keys.serving, keys.building, keys.known)}) == 1


def test_a_batch_of_many_rows_is_there_at_once(see: SeeRedis, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, *((f"k{one}", one) for one in range(12_000))))
    hand.apply(changes(SHAPE, gone=tuple((f"k{one}",) for one in range(1, 12_000))))
    assert see.look() == (1, [("k0", 0)])


def test_a_reader_reads_views_of_any_size(see: SeeRedis, hand: Hand) -> None:
    with contextlib.closing(RedisReader(see.url, "shop:", "sales")) as reader:
        assert reader.known() == []
        hand.begin()
        assert [one.part for one in reader.known()] == [Part.BUILDING]
        for many in (3, 12_000):
            hand.serve()
            rows: list[Row] = [(f"k{one:05}", one) for one in range(many)]
            hand.apply(changes(SHAPE, *rows))
            assert reader.count("sales") == many
            with reader.reading("sales", 60) as (names, found):
                assert (names, sorted(found)) == (["key", "number"], rows)
        see.client.hset("shop:sales", "k00000", "garbage")
        with pytest.raises(StoreDamaged, match="garbage"), reader.reading("sales", 60) as (_, found):
            list(found)


# What goes wrong


def test_what_is_not_ours_is_left_as_it_is(see: SeeRedis) -> None:
    see.client.hset("shop:sales", "theirs", "x")
    with contextlib.closing(see.open()) as store, pytest.raises(StoreForeign, match="no follower made"):
        Hand(store).begin()
    see.client.set("shop:other", "theirs")
    with pytest.raises(StoreForeign, match="else than a hash"):
        see.open("other")
    see.client.hset("{shop:new}:headrace", "format", 99)
    with pytest.raises(StoreUnusable, match="format 99"):
        see.open("new")
    assert (see.client.hgetall("shop:sales"), see.client.get("shop:other")) == ({b"theirs": b"x"}, b"theirs")


def test_rows_that_somebody_has_changed_are_found_out(see: SeeRedis, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 2)))
    see.client.delete("shop:sales")
    standing = hand.store.standing(Part.SERVING)
    assert standing is not None
    assert "0 rows are there, and 2 were written" in standing.fault
    with pytest.raises(PositionMoved, match="0 rows are there"):
        hand.apply(changes(SHAPE, ("c", 3)))
    assert see.client.exists("shop:sales") == 0


def test_a_store_that_was_wiped_or_put_back_is_taken_again(see: SeeRedis, hand: Hand) -> None:
    hand.serve()
    kept = {key: see.client.dump(key) for key in see.client.scan_iter()}
    hand.owner = hand.store.take("again", 2, hand.owner)
    see.client.flushdb()
    with pytest.raises(StoreReplaced, match=r"nobody.*epoch 2"):
        hand.begin()
    for key, dumped in kept.items():
        see.client.restore(key, 0, dumped)
    with pytest.raises(StoreReplaced, match=r"epoch 1.*epoch 2"):
        hand.apply(changes(SHAPE, ("a", 1)))
    hand.owner = hand.store.take("again", 2, hand.owner)
    hand.apply(changes(SHAPE, ("a", 1)))
    assert see.look() == (0, [("a", 1)])


def test_somebody_who_changes_a_view_all_the_time_is_told_of(see: SeeRedis) -> None:
    class Pestered(RedisStore):
        def _batch(self, *given: Any) -> Iterator[Any]:
            yield from super()._batch(*given)
            see.client.hset("shop:sales", "a", "x")

    with contextlib.closing(Pestered(see.url, "shop:", "sales")) as store:
        hand = Hand(store)
        hand.serve()
        with pytest.raises((StoreBusy, PositionMoved)) as told:
            hand.apply(changes(SHAPE, ("a", 1)))
    assert told.value.retriable


def test_a_server_without_memory_takes_whole_batches_or_none(server: RedisServer) -> None:
    client = server.client()
    with contextlib.closing(RedisStore(server.url, "shop:", "sales")) as store:
        hand = Hand(store)
        hand.serve()
        hand.apply(changes(SHAPE, *((f"k{one}", one) for one in range(100))))
        at = hand.position
        hand.begin()
        hand.apply(changes(SHAPE, ("built", 1)), Part.BUILDING)
        built, hand.position = hand.position, at
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull) as told:
                hand.apply(changes(SHAPE, *((f"new{one}", one) for one in range(2_000)), gone=(("k1",),)))
            assert told.value.retriable
            found = store.standing(Part.SERVING)
            assert found is not None
            assert (found.position, found.fault, client.hlen("shop:sales")) == (at, "", 100)
            # What frees memory goes on.
            hand.apply(changes(SHAPE, gone=(("k1",),)))
            assert client.hlen("shop:sales") == 99
            store.swap(hand.fence)
            found = store.standing(Part.SERVING)
            assert found is not None
            assert (found.position, found.fault, client.hlen("shop:sales")) == (built, "", 1)
        finally:
            client.config_set("maxmemory", 0)


def test_a_server_that_may_delete_views_is_refused(server: RedisServer) -> None:
    client = server.client()
    client.config_set("maxmemory", "1gb")
    try:
        for policy, fits in (("noeviction", True), ("volatile-lru", True), ("allkeys-lru", False)):
            client.config_set("maxmemory-policy", policy)
            if fits:
                RedisStore(server.url, "shop:", "sales").close()
                assert check(server.url).startswith("redis ")
                continue
            with pytest.raises(StoreUnusable, match=policy):
                RedisStore(server.url, "shop:", "sales")
            with pytest.raises(StoreUnusable, match=policy):
                check(server.url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)


def test_troubles_are_told_and_whether_they_heal(server: RedisServer) -> None:
    client = server.client()

    def trouble(address: str = server.url) -> StoreError:
        with (
            pytest.raises(StoreError) as told,
            contextlib.closing(RedisStore(address, "shop:", "v")) as store,
        ):
            Hand(store)
        assert told.value.hint
        assert "s3cr3t" not in str(told.value)
        return told.value

    for wrong in (
        "localhost:6379",
        "redis://:s3cr3t@host:port/",
        "redis://:s3cr3t/more@host:6379/",
        f"{server.url}?nonsense=1",
    ):
        assert isinstance(trouble(wrong), StoreUnusable)
    away = trouble("redis://me:s3cr3t@127.0.0.1:1/0")
    assert (type(away), away.retriable) == (StoreGone, True)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        replica = trouble()
        assert (type(replica), replica.retriable) == (StoreGone, True)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    client.config_set("min-replicas-to-write", 1)
    try:
        assert isinstance(trouble(), StoreGone)
    finally:
        client.config_set("min-replicas-to-write", 0)
    client.execute_command("ACL", "SETUSER", "reader", "on", ">s3cr3t", "~*", "+@read", "+@connection")
    try:
        assert isinstance(trouble(f"{server.url}?username=reader&password=s3cr3t"), StoreUnusable)
        assert isinstance(trouble(f"{server.url}?username=reader&password=s3cr3t2"), StoreUnusable)
    finally:
        client.execute_command("ACL", "DELUSER", "reader")


def test_a_login_with_the_rights_that_the_docs_name_is_enough(see: SeeRedis) -> None:
    rights = ("+@read", "+@write", "+@transaction", "+@scripting", "+@connection", "+select", "+info")
    see.client.execute_command("ACL", "SETUSER", "follower", "on", ">s3cr3t", "~shop:*", "~{shop:*", *rights)
    try:
        url = f"{see.url}&username=follower&password=s3cr3t"
        with contextlib.closing(RedisStore(url, "shop:", "sales")) as store:
            hand = Hand(store)
            hand.serve()
            hand.apply(changes(SHAPE, ("a", 1), ("b", 2)))
            hand.apply(changes(SHAPE, gone=(("b",),)))
            hand.begin()
            store.drop_building(hand.fence)
            store.ask_rebuild()
            assert list(store.rows()) == [("a", 1)]
    finally:
        see.client.execute_command("ACL", "DELUSER", "follower")


# Under a follower


class Follow:
    """A flow by hand, and its view in Redis."""

    def __init__(self, cluster: Cluster, name: str, server: RedisServer) -> None:
        self.flow = FlowByHand(cluster, name)
        self.view = self.flow.app.view(f"{name}-redis", self.flow.topic, store=Redis(server.url))
        self.server = server
        self.flow.begin()

    def rows(self) -> dict[str, tuple[Any, ...]] | None:
        found = self.server.client().hgetall(f"shop:{self.view.name}")
        return {key.decode(): tuple(json.loads(value).values()) for key, value in found.items()}

    def expect(self) -> None:
        until(lambda: self.rows() == self.flow.derived.rows, f"{self.flow.derived.rows}", pause_s=0.01)


def test_a_server_that_is_stopped_killed_wiped_or_put_back_is_caught_up_with(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, server: RedisServer
) -> None:
    made = Follow(cluster, fresh("sales"), server)
    made.flow.batch([row("a"), row("b")])
    with following(cluster, made.view, [made.flow.flow], tmp_path) as followed:
        made.expect()
        # Killed, and started again with what it has.
        server.end()
        followed.until_state("waiting", "does not answer")
        made.flow.batch([row("c")])
        server.start()
        made.expect()
        assert followed.follower.status.rebuilds == 1
        # Wiped, and nothing comes from the log.
        server.client().flushall()
        made.expect()
        assert followed.follower.status.rebuilds == 2
        # One key of it.
        server.client().delete(f"shop:{made.view.name}")
        made.expect()
        until(lambda: followed.follower.status.rebuilds == 3, "the rebuild")
        followed.until_state("following")
        # An older state, and nothing comes from the log.
        kept = {key: server.client().dump(key) for key in server.client().scan_iter()}
        made.flow.batch([row("d"), ("a", None)])
        made.expect()
        older = server.client().pipeline(transaction=True)
        for key, dumped in kept.items():
            older.restore(key, 0, dumped, replace=True)
        older.execute()
        made.expect()
        assert followed.follower.status.rebuilds == 3
        # Asleep.
        server.end(signal.SIGSTOP)
        made.flow.batch([row("e")])
        server.end(signal.SIGCONT)
        made.expect()
        # Killed, and started again without what it had.
        server.end()
        server.forget()
        server.start()
        made.expect()
        assert followed.follower.status.rebuilds == 4


ZOMBIE = """
import os, signal, sys
from headrace.views.errors import StaleWriter
from headrace.views.redis.store import RedisStore
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE

class Sleepy(RedisStore):
    def _batch(self, *given):
        yield from super()._batch(*given)
        print("all but EXEC", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

store = Sleepy(sys.argv[1], "shop:", "sales")
hand = Hand(store)
hand.serve()
try:
    hand.apply(changes(SHAPE, *((f"zombie{n}", n) for n in range(2_000))))
except StaleWriter as error:
    print(error.message, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_zombie_whose_batch_is_in_the_server_already_changes_nothing(
    see: SeeRedis, end: signal.Signals
) -> None:
    zombie = subprocess.Popen([sys.executable, "-c", ZOMBIE, see.url], stdout=subprocess.PIPE, text=True)
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "all but EXEC\n"
    with contextlib.closing(see.open()) as store:
        successor = Hand(store)
        successor.apply(changes(SHAPE, ("a", 1)))
        os.kill(zombie.pid, end)
        told = zombie.stdout.read()
        zombie.wait()
        zombie.stdout.close()
        assert ("epoch 1 " in told and "epoch 2 " in told) == (end is signal.SIGCONT)
        assert see.look() == (0, [("a", 1)])
        successor.apply(changes(SHAPE, ("b", 2)))
    assert see.look() == (1, [("a", 1), ("b", 2)])


def test_a_view_is_opened_by_its_declaration(see: SeeRedis, tmp_path: Path) -> None:
    app = App("shop")
    topic = app.topic("sales", Sale, key="product")
    plain = app.view("plain", topic, store=Redis(see.url))
    other = app.view("other", topic, store=Redis(see.url, prefix="{cache}:"))
    for view, key in ((plain, "shop:plain"), (other, "{cache}:other")):
        with contextlib.closing(open_store(view, app.name, tmp_path)) as store:
            hand = Hand(store)
            hand.serve()
            hand.apply(changes(SHAPE, ("a", 1)))
        assert see.client.hget(key, "a") == b'{"key":"a","number":1}'
        reader = open_reader(view, app.name, tmp_path)
        assert reader is not None
        with contextlib.closing(reader):
            assert [(one.view, one.batch) for one in reader.known()] == [(view.name, 0)]
