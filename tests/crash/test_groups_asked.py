"""Groups, asked about while what answers is killed: the answer is true, or an error that says to try again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition

from bench.faults.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.group_asker import GroupAsker

_KILLS = 16
_TOPIC, _GROUP = "asked", "readers"
_HERE = {_GROUP: {(_TOPIC, 0): 3, (_TOPIC, 2): 1}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=20.0)
        cluster.ensure_topic(_TOPIC, 3)
        consumer = cluster.consumer({"group.id": _GROUP})
        places = [TopicPartition(_TOPIC, number, offset) for (_, number), offset in _HERE[_GROUP].items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
        yield broker


def _asking() -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process().children()
        if one.is_running() and "headrace.client.group_worker" in one.cmdline()
    ]


def test_whoever_asks_about_groups_outlasts_a_broker_that_is_killed_and_is_told_the_truth(
    broker: BrokerProcess,
) -> None:
    """The client library itself does not: it ends its process."""
    answers: list[object] = []
    refused: list[LogError] = []
    stop = threading.Event()

    def ask(asker: GroupAsker) -> None:
        while not stop.is_set():
            try:
                answers.append(asker.committed([*asker.listed()]))
                group = asker.described([_GROUP])[_GROUP]
                answers.append((group.state, group.members))
            except LogError as error:
                refused.append(error)
                time.sleep(0.005)

    with closing(GroupAsker(Cluster(broker.bootstrap, timeout_s=2.0))) as asker:
        asking = [threading.Thread(target=ask, args=(asker,)) for _ in range(2)]
        for one in asking:
            one.start()
        try:
            rng = random.Random(1)
            for _ in range(_KILLS):
                time.sleep(rng.uniform(0.05, 0.3))
                broker.kill()
                broker.start()
            told = len(answers)
            deadline = time.monotonic() + 120
            while len(answers) < told + 4 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            stop.set()
            for one in asking:
                one.join()
    assert len(answers) >= told + 4
    assert [one for one in answers if one not in (_HERE, ("EMPTY", []))] == []
    assert [one for one in refused if not one.retriable] == []


def test_a_question_is_asked_again_where_its_process_was_killed_and_no_process_is_left(
    broker: BrokerProcess,
) -> None:
    with closing(GroupAsker(Cluster(broker.bootstrap, timeout_s=20.0))) as asker:
        assert asker.listed() == {_GROUP: ("EMPTY", "CLASSIC")}
        assert asker.committed([_GROUP, "nobody"]) == {**_HERE, "nobody": {}}
        for _ in range(3):
            (process,) = _asking()
            process.kill()
            assert asker.committed([_GROUP]) == _HERE
        asker.move(_GROUP, [(_TOPIC, 1, 0)])
        assert asker.committed([_GROUP])[_GROUP][_TOPIC, 1] == 0
    assert _asking() == []
    with pytest.raises(LogError, match="nobody asks any more"):
        asker.listed()
    again = GroupAsker(Cluster(broker.bootstrap, timeout_s=20.0))
    assert _GROUP in again.described([_GROUP])
    (process,) = _asking()
    del again
    assert not process.is_running()


def test_without_a_broker_it_is_told_in_time_what_is_the_matter(broker: BrokerProcess) -> None:
    broker.kill()
    with closing(GroupAsker(Cluster(broker.bootstrap, timeout_s=1.0))) as asker:
        with pytest.raises(LogError) as told:
            asker.committed([_GROUP])
        assert told.value.retriable
        with pytest.raises(LogError, match="asking for the offsets of group ''") as unfit:
            asker.committed([""])
        assert not unfit.value.retriable


def test_whoever_waits_for_an_answer_is_told_at_once_that_there_will_be_none(broker: BrokerProcess) -> None:
    asker = GroupAsker(Cluster(broker.bootstrap, timeout_s=600.0))
    asker.listed()
    broker.pause()
    told: list[LogError] = []

    def ask() -> None:
        try:
            asker.listed()
        except LogError as error:
            told.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.2)
    asker.close()
    waiting.join(60)
    broker.resume()
    assert [one.code for one in told] == ["HR-KAFKA-CLIENT_CLOSED"]


def test_an_answer_that_is_too_large_is_refused_and_the_next_question_is_answered(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(GroupAsker(Cluster(broker.bootstrap, timeout_s=20.0))) as asker:
        with monkeypatch.context() as patched:
            patched.setattr("headrace.client.group_asker._ANSWER_BYTES_MAX", 10)
            patched.setattr("headrace.client.group_asker._CHUNK_BYTES", 4)
            with pytest.raises(LogError, match="more than 0 MiB"):
                asker.committed([_GROUP])
        assert asker.committed([_GROUP]) == _HERE
