"""Views in Redis, and a server that sleeps, evicts, is demoted or has less room than a batch needs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.model.kinds import Field, Plain
from headrace.views.errors import StoreDamaged, StoreError, StoreGone, StoreUnusable
from headrace.views.position import Shape
from headrace.views.redis.store import RedisStore
from headrace.views.store import Part
from tests.contract.see_redis import SeeRedis
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE
from tests.support.redis import RedisServer, running
from tests.support.server import free_port
from tests.support.waiting import until

NOTES = Shape((Field("key", Plain("text"), False), Field("note", Plain("text"), True)), ("key",))


@pytest.fixture
def see(tmp_path: Path) -> Iterator[SeeRedis]:
    with contextlib.closing(SeeRedis(tmp_path)) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running() as made:
        yield made


@pytest.fixture
def hand(server: RedisServer) -> Iterator[Hand]:
    server.client().flushall()
    with contextlib.closing(RedisStore(server.url, "shop:", "sales")) as store:
        yield Hand(store)


def test_who_is_to_end_does_not_wait_for_a_server_that_sleeps(server: RedisServer) -> None:
    server.client().flushall()
    # However long its address would wait for an answer.
    with contextlib.closing(RedisStore(f"{server.url}?socket_timeout=300", "shop:", "sales")) as store:
        hand, told = Hand(store), list[BaseException]()
        hand.serve()
        store.stop = threading.Event()

        def write() -> None:
            try:
                hand.apply(changes(SHAPE, ("a", 1)))
            except BaseException as error:
                told.append(error)

        server.end(signal.SIGSTOP)
        try:
            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            store.stop.set()
            writer.join(60)
            assert not writer.is_alive()
        finally:
            server.end(signal.SIGCONT)
    (error,) = told
    assert isinstance(error, StoreGone)
    assert "no answer" in str(error)


def test_a_server_that_is_demoted_before_the_end_of_a_batch_is_waited_for(server: RedisServer) -> None:
    client = server.client()

    class Demoted(RedisStore):
        def _batch(self, *given: Any) -> Iterator[Any]:
            yield from super()._batch(*given)
            until(lambda: any(int(one["multi"]) > 0 for one in client.client_list()), "the rows are there")
            client.execute_command("REPLICAOF", "127.0.0.1", "1")

    client.flushall()
    with contextlib.closing(Demoted(server.url, "shop:", "sales")) as store:
        hand = Hand(store)
        hand.serve()
        try:
            with pytest.raises(StoreError, match="READONLY") as told:
                hand.apply(changes(SHAPE, ("a", 1)))
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")
    assert (type(told.value), told.value.retriable) == (StoreGone, True)
    assert client.exists("shop:sales") == 0


def test_a_server_that_has_begun_to_evict_is_refused_when_a_view_is_gone(
    server: RedisServer, hand: Hand
) -> None:
    client = server.client()
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    client.config_set("maxmemory", "1gb")
    client.config_set("maxmemory-policy", "allkeys-random")
    try:
        client.delete("shop:sales")
        found = hand.store.standing(Part.SERVING)
        assert found is not None
        assert "evicted" in found.fault
        with pytest.raises(StoreUnusable, match="allkeys-random"):
            hand.begin()
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 0)
    hand.serve()


def test_checks_of_the_client_s_own_do_not_come_between(see: SeeRedis) -> None:
    """Which an address can ask for; one in the middle of a transaction would undo it."""

    class Late(RedisStore):
        def _batch(self, *given: Any) -> Iterator[Any]:
            yield from super()._batch(*given)
            self._server._connection.next_health_check = 0

    url = f"{see.url}&health_check_interval=1&encoding=latin-1"
    with contextlib.closing(Late(url, "shop:", "sales")) as store:
        hand = Hand(store)
        hand.serve()
        hand.apply(changes(SHAPE, ("a€", 1)))
    assert see.look() == (0, [("a€", 1)])


@pytest.mark.parametrize(("name", "text"), [("serving", "{}"), ("serving.shape", "[]"), ("epoch", "x")])
def test_notes_that_somebody_has_changed_are_told(see: SeeRedis, name: str, text: str) -> None:
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.serve()
        see.client.hset("{shop:sales}:headrace", name, text)
        with pytest.raises(StoreDamaged, match="does not read back") as told:
            Hand(store).store.standing(Part.SERVING)
    assert "delete" in told.value.hint


def test_a_row_that_is_too_much_for_the_server_is_told_as_such(server: RedisServer, hand: Hand) -> None:
    hand.serve(NOTES)
    row = ("a", "x" * (3 << 20))
    server.client().config_set("client-query-buffer-limit", "1mb")
    try:
        with pytest.raises(StoreGone, match="client-query-buffer-limit"):
            hand.apply(changes(NOTES, row))
    finally:
        server.client().config_set("client-query-buffer-limit", "1gb")
    hand.apply(changes(NOTES, row))
    assert list(hand.store.rows()) == [row]


@contextlib.contextmanager
def node() -> Iterator[tuple[RedisServer, int]]:
    # Nodes talk to each other on a port ten thousand higher.
    port = next(one for one in iter(free_port, 0) if one < 55_000)
    words = ("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes")
    with running(*words) as made:
        yield made, port


def test_a_node_of_a_cluster_has_the_views_of_its_slots_and_says_whose_the_others_are() -> None:
    with node() as (server, _), node() as (other, port):
        client = server.client()
        with pytest.raises(StoreGone, match="not served"):
            RedisStore(server.url, "shop:", "sales")
        slot = {name: client.execute_command("CLUSTER", "KEYSLOT", f"shop:{name}") for name in "abcdefgh"}
        mine, theirs = min(slot, key=slot.__getitem__), max(slot, key=slot.__getitem__)
        client.execute_command("CLUSTER", "ADDSLOTS", *range(slot[mine] + 1))
        other.client().execute_command("CLUSTER", "ADDSLOTS", *range(slot[mine] + 1, 16_384))
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", port)
        until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "it", pause_s=0.05)
        with contextlib.closing(RedisStore(server.url, "shop:", mine)) as store:
            hand = Hand(store)
            hand.serve()
            hand.apply(changes(SHAPE, ("a", 1), ("b", 2)))
            hand.apply(changes(SHAPE, gone=(("b",),)))
            assert list(store.rows()) == [("a", 1)]
        with pytest.raises(StoreUnusable, match=f"belongs to another.*:{port}"):
            RedisStore(server.url, "shop:", theirs)
