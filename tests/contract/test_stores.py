"""The contract of a store: one suite, which every store must pass.

A store is looked at by its own means, past the code under test: ``See`` gives the batch that its position names and the
rows that are read with it, in one look.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from headrace.model.topic import Topic
from headrace.model.view import View
from headrace.ops.served import read_served
from headrace.views.errors import NameRefused, PositionMoved, StaleWriter, StoreReplaced
from headrace.views.opening import open_reader
from headrace.views.position import NO_BATCH, Position
from headrace.views.rows import Row
from headrace.views.store import Fence, Owner, Part
from tests.contract.see import See
from tests.contract.store_hand import EVERYTHING, Hand, changes
from tests.contract.store_model import Model
from tests.contract.store_writer import SHAPE, position_of, rows_after

# Rows and positions


def test_a_view_serves_nothing_before_its_first_swap(see: See, hand: Hand) -> None:
    assert hand.store.standing(Part.SERVING) is None
    hand.begin()
    hand.apply(changes(SHAPE, ("a", 1)), Part.BUILDING)
    assert see.look() is None
    hand.store.swap(hand.fence)
    assert see.look() == (0, [("a", 1)])
    assert hand.store.standing(Part.BUILDING) is None


def test_rows_are_put_replaced_and_deleted_by_their_key(see: See, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1), ("b", 1), ("c", 1)))
    hand.apply(changes(SHAPE, ("b", 2), gone=(("c",), ("never there",))))
    assert see.look() == (1, [("a", 1), ("b", 2)])


def test_of_one_key_in_a_batch_the_last_change_counts(see: See, hand: Hand) -> None:
    hand.serve()
    made = changes(SHAPE, ("a", 1), ("a", 2), ("b", 1), gone=(("b",), ("c",)))
    made.put(("c", 3))
    hand.apply(made)
    assert see.look() == (0, [("a", 2), ("c", 3)])


def test_what_is_known_of_a_view_is_there_after_it_was_closed(see: See) -> None:
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.serve(EVERYTHING)
        hand.apply(changes(EVERYTHING))
        assert store.standing(Part.SERVING) is not None
    with contextlib.closing(see.open()) as store:
        found = store.standing(Part.SERVING)
        assert found is not None
        assert (found.position, found.shape.tell(), found.reason) == (
            hand.position,
            EVERYTHING.tell(),
            "a test",
        )


def test_how_far_a_flow_in_real_time_is_in_a_view_is_known_after_a_restart_to_all_who_ask(
    see: See, tmp_path: Path
) -> None:
    view = View("sales", Topic("sales", None, ("key",)), ("key",), see.declared())
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.begin()
        hand.apply(changes(SHAPE, ("a", 1)), Part.BUILDING)
        store.swap(hand.fence)
        hand.apply(changes(SHAPE, ("b", 2)))
    sources = {"0/0": 7, "0/12": 2**40 + 1}
    with contextlib.closing(see.open()) as store:
        found = store.standing(Part.SERVING)
        assert found is not None
        assert found.position == hand.position
        assert found.position.sources == sources
        # Whoever looks, and whoever proves, which share none of the code that has written it.
        reader = open_reader(view, "shop", see.home)
        assert reader is not None
        with contextlib.closing(reader):
            assert [one.sources for one in reader.known()] == [sources]
        served, scratch = read_served(tmp_path, view, "shop", see.home)
        scratch.close()
        assert (served.sources, served.batch) == (sources, 1)
        again = Hand(store)
        again.position = found.position
        again.apply(changes(SHAPE, ("b", 3)))
    assert see.look() == (2, [("a", 1), ("b", 3)])


# Fences


def everything_that_writes(hand: Hand) -> dict[str, Callable[[], object]]:
    return {
        "begin": hand.begin,
        "apply": lambda: hand.apply(changes(SHAPE, ("z", 9))),
        "apply beside": lambda: hand.apply(changes(SHAPE, ("z", 9)), Part.BUILDING),
        "swap": lambda: hand.store.swap(hand.fence),
        "drop": lambda: hand.store.drop_building(hand.fence),
    }


@pytest.mark.parametrize("what", ["begin", "apply", "apply beside", "swap", "drop"])
def test_a_replaced_follower_is_refused_whatever_it_writes(see: See, hand: Hand, what: str) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    at = hand.position
    hand.begin()
    hand.position = at
    with contextlib.closing(see.open()) as other:
        successor = Hand(other)
        with pytest.raises(StaleWriter) as refused:
            everything_that_writes(hand)[what]()
        told = str(refused.value)
        assert f"epoch {hand.owner.epoch} " in told
        assert f"epoch {successor.owner.epoch} " in told
        assert other.standing(Part.BUILDING) is not None
    assert see.look() == (0, [("a", 1)])


def test_an_epoch_is_given_out_once(see: See) -> None:
    epochs = []
    for _ in range(3):
        with contextlib.closing(see.open()) as store:
            epochs += [store.take("a", 1).epoch, store.take("a", 1).epoch]
    assert epochs == sorted(set(epochs))


def test_a_follower_that_comes_back_after_its_replacement_is_refused(see: See, hand: Hand) -> None:
    with contextlib.closing(see.open()) as other:
        other.take("other", 1)
        with pytest.raises(StaleWriter):
            hand.store.take("hand", 1, hand.owner)
        again = other.take("other", 1, Owner(2, "other"))
    assert again.epoch == 3


def test_a_follower_keeps_its_view_when_the_store_was_restored_to_before_it(hand: Hand) -> None:
    """As after a backup was put back: the store knows an older owner."""
    assert hand.store.take("hand", 1, Owner(7, "hand")).epoch == 8


def test_a_follower_that_heard_no_answer_when_it_took_its_view_has_it_still(hand: Hand) -> None:
    """As when the server goes at that moment: it is the owner, and does not know."""
    hand.store.take("again", 1, hand.owner)
    hand.owner = hand.store.take("again", 1, hand.owner)
    assert hand.owner.epoch == 3
    hand.serve()


@pytest.mark.parametrize("what", ["begin", "apply", "apply beside", "swap", "drop"])
def test_a_store_that_was_put_back_to_before_its_follower_is_not_another_s(hand: Hand, what: str) -> None:
    """Whatever is written first: it is told that the store must be opened again, and goes on."""
    hand.serve()
    at = hand.position
    hand.begin()
    hand.position = at
    known, hand.owner = hand.owner, Owner(7, "hand")
    with pytest.raises(StoreReplaced) as told:
        everything_that_writes(hand)[what]()
    assert told.value.retriable
    assert str(known) in str(told.value)
    hand.owner = hand.store.take("hand", 1, hand.owner)
    assert hand.owner.epoch == 8
    everything_that_writes(hand)[what]()


def test_a_write_of_another_generation_is_refused_and_both_are_named(see: See, hand: Hand) -> None:
    hand.generation = 2
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    old = Fence(hand.owner, 1)
    attempts: list[Callable[[], object]] = [
        lambda: hand.store.apply(
            Part.SERVING, changes(SHAPE, ("a", 0)), hand.position, position_of(1, 1), old
        ),
        lambda: hand.store.apply(
            Part.SERVING, changes(SHAPE, ("a", 0)), hand.position, position_of(1, 1), hand.fence
        ),
        lambda: hand.store.begin(SHAPE, position_of(NO_BATCH, 1), "", old),
    ]
    for attempt in attempts:
        with pytest.raises(StaleWriter, match=r"generation [12]\b.*generation [12]\b") as refused:
            attempt()
        assert "generation 1" in str(refused.value)
        assert "generation 2" in str(refused.value)
    assert see.look() == (0, [("a", 1)])


def test_a_write_from_another_position_than_the_store_s_is_refused(see: See, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    with pytest.raises(PositionMoved):
        hand.store.apply(
            Part.SERVING, changes(SHAPE, ("a", 0)), position_of(7, 1), position_of(8, 1), hand.fence
        )
    with pytest.raises(PositionMoved):
        hand.apply(changes(SHAPE, ("a", 0)), Part.BUILDING)
    assert see.look() == (0, [("a", 1)])


# Building beside


def test_the_old_table_serves_until_the_new_one_takes_its_place(see: See, hand: Hand) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    hand.generation = 2
    hand.begin(EVERYTHING)
    row: Row = ("b", 1, 0.5, True, "1.000000", b"x")
    hand.apply(changes(EVERYTHING, row), Part.BUILDING)
    assert see.look() == (0, [("a", 1)])
    hand.store.swap(hand.fence)
    assert list(hand.store.rows()) == [row]
    found = hand.store.standing(Part.SERVING)
    assert found is not None
    assert (found.position, found.shape.key) == (hand.position, ("key",))
    assert hand.store.standing(Part.BUILDING) is None


def test_a_build_goes_on_after_a_restart_and_begins_anew_when_asked_to(see: See) -> None:
    with contextlib.closing(see.open()) as store:
        hand = Hand(store)
        hand.begin()
        hand.apply(changes(SHAPE, ("a", 1)), Part.BUILDING)
    with contextlib.closing(see.open()) as store:
        again = Hand(store)
        again.position = hand.position
        again.apply(changes(SHAPE, ("b", 1)), Part.BUILDING)
        assert list(store.rows(Part.BUILDING)) == [("a", 1), ("b", 1)]
        again.begin()
        assert list(store.rows(Part.BUILDING)) == []
        again.store.drop_building(again.fence)
        assert store.standing(Part.BUILDING) is None


def test_a_wish_to_rebuild_is_fulfilled_by_what_is_begun_after_it(see: See, hand: Hand) -> None:
    hand.serve()
    with contextlib.closing(see.open()) as other:
        other.ask_rebuild()
    serving = hand.store.standing(Part.SERVING)
    assert serving is not None
    assert serving.wish < hand.store.wish()
    hand.serve()
    serving = hand.store.standing(Part.SERVING)
    assert serving is not None
    assert serving.wish == hand.store.wish()


def test_views_of_one_store_do_not_meet(see: See) -> None:
    with contextlib.closing(see.open("one")) as first, contextlib.closing(see.open("two")) as second:
        one, two = Hand(first), Hand(second)
        one.serve()
        two.begin()
        two.apply(changes(SHAPE, ("b", 2)), Part.BUILDING)
        one.apply(changes(SHAPE, ("a", 1)))
        two.store.swap(two.fence)
    assert see.look("one") == (0, [("a", 1)])
    assert see.look("two") == (0, [("b", 2)])


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\0b", "a b", "ä", "x" * 245, 'x"; DROP TABLE y; --']
)
def test_a_name_that_could_be_a_path_or_sql_is_refused(see: See, tmp_path: Path, name: str) -> None:
    # Beside the folder there are those of servers, which work on.
    before, beside = sorted(tmp_path.rglob("*")), set(tmp_path.parent.iterdir())
    with pytest.raises(NameRefused):
        see.open(name)
    assert sorted(tmp_path.rglob("*")) == before
    assert set(tmp_path.parent.iterdir()) <= beside


@pytest.mark.parametrize("name", ["x" * 244, "a-b.c_d", "select", "1", "group"])
def test_a_name_that_a_topic_may_have_is_taken(see: See, name: str) -> None:
    with contextlib.closing(see.open(name)) as store:
        hand = Hand(store)
        hand.serve()
        hand.apply(changes(SHAPE, ("a", 1)))
        assert list(store.rows()) == [("a", 1)]


# At every moment


def test_a_reader_sees_whole_batches_only(see: See, hand: Hand) -> None:
    """Every row of a batch has its number, and builds beside are swapped in between."""
    hand.serve()
    done, seen, problems = threading.Event(), set(), []

    def read() -> None:
        while not done.is_set() or not seen:
            began = time.monotonic()
            found = see.look()
            # Who writes must get on.
            time.sleep(time.monotonic() - began)
            assert found is not None
            batch, rows = found
            seen.add(batch)
            if batch != NO_BATCH and {number for _, number in rows} != {batch}:
                problems.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(60 if see.dear else 150):
        rows: list[Row] = [(f"k{one}", number) for one in range(40)]
        if number % 20 == 19:
            at = hand.position
            hand.begin()
            hand.store.apply(Part.BUILDING, changes(SHAPE), hand.position, at, hand.fence)
            hand.position = at
            hand.apply(changes(SHAPE, *rows), Part.BUILDING)
            hand.store.swap(hand.fence)
        else:
            hand.apply(changes(SHAPE, *rows))
    done.set()
    for reader in readers:
        reader.join()
    assert not problems
    assert len(seen) > 3


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_leaves_rows_and_position_of_one_batch(see: See, seed: int) -> None:
    rng = random.Random(seed)
    last = -2
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.store_writer", see.opener()],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        wanted = rng.randint(1, 12 if see.dear else 30)
        for line in writer.stdout:
            if int(line) >= last + wanted:
                break
        # Somewhere inside what comes next.
        threading.Event().wait(rng.uniform(0, 0.003))
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = see.look()
        assert found is not None
        batch, rows = found
        assert batch > last
        assert rows == rows_after(batch)
        last = batch


def test_a_store_agrees_with_a_dict_through_any_history(
    see: See, tmp_path_factory: pytest.TempPathFactory
) -> None:
    class Fresh(Model):
        def __init__(self) -> None:
            self.see = type(see)(tmp_path_factory.mktemp("model"))
            super().__init__()

    run_state_machine_as_test(Fresh, settings=settings(max_examples=see.histories, stateful_step_count=25))


def test_positions_of_every_kind_come_back(hand: Hand) -> None:
    position = Position(
        "t.g2", "id", {0: 5, 12: 2**62}, 1, 7, "pid", 99, {0: 3}, complete_ms=5, stored_ms=6, dead=4
    )
    hand.store.begin(SHAPE, position, "why", hand.fence)
    found = hand.store.standing(Part.BUILDING)
    assert found is not None
    assert found.position == position
