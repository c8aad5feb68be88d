"""X24, names as paths: whatever a client calls a topic, a group, itself or a setting, no path is made of it.

The data directory lies among canaries, and so does the directory that the broker runs in. A run sends generated names
in every place of every request that takes one. What must hold: topics get error 17 where the name is not one, other
names are taken without harm or refused; the tree outside the data directory is the same to the last byte; inside it are
only files of the known kinds; what was created is there under exactly its name, also after a kill.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.codec import Reader, array, string
from bench.faults.connection import Connection, Gone
from bench.faults.hostile import hostile_name, is_text, is_topic_name
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "changes", "plant", "run", "tree"]

FAULT = "X24"
UNPROTECTED = {"names": r"^outside the data directory"}
CASES = 100
Name = str | bytes

_TOPIC_WAYS = (
    *("create", "create", "metadata", "produce", "fetch", "delete"),
    *("grow", "alter", "describe", "offsets", "trim"),
)
_OK, _UNKNOWN_TOPIC, _LEADER_UNKNOWN, _INVALID_TOPIC, _EXISTS = 0, 3, 5, 17, 36
_SERVER_ERROR = -1
_RESERVED = "__cluster_metadata"
_KNOWN_FILES = re.compile(
    r"lock|headrace\.json|(metadata|groups|topics/[0-9a-f]{32}/\d{1,9})/(mark|\d{20}\.(log|index|state))",
    re.ASCII,
)


def run(seed: int, *, protected: bool = True, without: str = "names", cases: int = CASES) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    with workplace(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant(world)
        starter = ["--chdir", str(world / "here")] + ([] if protected else ["--without", without])
        with BrokerProcess(home / "own", starter=starter, forked=True, data=world / "data") as broker:
            broker.start()
            before = dict(tree(home / "a", besides=broker.data))
            attack = _Attack(broker, rng, str(world / "canary"), outcome)
            try:
                attack.run(cases)
                broker.kill()
                broker.start()
                attack.expect_topics("after a kill")
                if broker.stop():
                    outcome.problems.append("the broker did not stop cleanly")
            except (BrokerDied, Gone) as failure:
                outcome.problems.append(f"{type(failure).__name__}: {failure}")
            outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
            outcome.problems += changes(before, dict(tree(home / "a", besides=broker.data)))
            outcome.problems += _strangers(broker.data)
            outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


class _Attack:
    def __init__(self, broker: BrokerProcess, rng: random.Random, target: str, outcome: Outcome) -> None:
        self._broker = broker
        self._rng = rng
        self._target = target
        self._outcome = outcome
        self._topics: dict[str, int] = {}
        self._connection = Connection(broker.port)

    def run(self, cases: int) -> None:
        ways = (
            self._topic,
            self._topic,
            self._topic,
            self._group,
            self._client,
            self._setting,
            self._transaction,
        )
        for _ in range(cases):
            name = hostile_name(self._rng, self._target)
            self._outcome.hits += 1
            way = self._rng.choice(ways)
            try:
                way(name)
            except Gone as gone:
                # Bytes that are no text are not a request; anything else deserves an answer.
                if is_text(name):
                    self._object(f"{way.__name__} {name!r:.60} got no answer: {gone}")
                self._connection.close()
                self._connection = Connection(self._broker.port)
        self.expect_topics("at the end")
        self._connection.close()

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    # Topics

    def _topic(self, name: Name) -> None:
        connection = self._connection
        way = self._rng.choice(_TOPIC_WAYS)
        if way == "create":
            self._created(name, calls.create_topic(connection, name, 1))
        elif way == "metadata":
            seen = calls.topics(connection, [name], auto_create=True)
            self._created(name, seen[0].error if seen else _INVALID_TOPIC, automatic=True)
        elif way == "delete":
            self._deleted(name, calls.delete_topic(connection, name))
        else:
            requests: dict[str, Callable[[], int]] = {
                "produce": lambda: self._produce(name),
                "fetch": lambda: calls.fetch(connection, name, 0, 0).error,
                "grow": lambda: calls.create_partitions(connection, name, 2),
                "alter": lambda: calls.alter_topic(connection, name, {"retention.ms": "1000000000"}),
                "describe": lambda: calls.topic_configs(connection, name, ["retention.ms"])[0],
                "offsets": lambda: calls.list_offset(connection, name, 0, calls.LATEST)[0],
                "trim": lambda: calls.delete_records(connection, name, 0, 0)[0],
            }
            self._asked(way, name, requests[way]())

    def _produce(self, name: Name) -> int:
        text = name if isinstance(name, str) else ""
        error = calls.produce(
            self._connection, name, 0, build_batch([text.encode()], int(time.time() * 1000))
        ).error
        if not error:
            self._topics[text] = self._topics.get(text, 0) + 1
        return error

    def _created(self, name: Name, error: int, *, automatic: bool = False) -> None:
        text = name if isinstance(name, str) else name.decode()
        if not is_topic_name(text):
            allowed = (_INVALID_TOPIC, _UNKNOWN_TOPIC) if automatic else (_INVALID_TOPIC,)
            if error not in allowed:
                self._object(f"creating {text!r:.60} was answered with {error}")
        elif error == _OK:
            self._topics.setdefault(text, 0)
        elif error == _EXISTS:
            if text not in self._topics:
                self._object(f"{text!r:.60} is said to exist, and nobody made it")
        elif error == _INVALID_TOPIC:
            twins = [other for other in self._topics if other.replace(".", "_") == text.replace(".", "_")]
            if not twins and not text.startswith("__"):
                self._object(f"{text!r:.60} is a topic's name and was refused")
        elif error not in (_UNKNOWN_TOPIC, _LEADER_UNKNOWN) and text != _RESERVED:
            self._object(f"creating {text!r:.60} was answered with {error}")

    def _deleted(self, name: Name, error: int) -> None:
        text = name if isinstance(name, str) else name.decode()
        if error == _OK:
            if self._topics.pop(text, None) is None:
                self._object(f"{text!r:.60} could be deleted, and nobody made it")
        elif text in self._topics or error == _SERVER_ERROR:
            self._object(f"deleting {text!r:.60} was answered with {error}")

    def _asked(self, way: str, name: Name, error: int) -> None:
        text = name if isinstance(name, str) else name.decode()
        if error == _SERVER_ERROR:
            self._object(f"{way} of {text!r:.60} failed inside the broker")
        if not is_topic_name(text) and error not in (_UNKNOWN_TOPIC, _INVALID_TOPIC, 42, 29):
            self._object(f"{way} of {text!r:.60}, which cannot be, was answered with {error}")

    def expect_topics(self, when: str) -> None:
        """Exactly what was made is there, and each has its own records."""
        with Connection(self._broker.port) as connection:
            found = {topic.name for topic in calls.topics(connection)}
            if found != set(self._topics):
                odd = sorted(found ^ set(self._topics))
                self._object(f"{when} the topics differ from what was made: {odd[:5]!r}")
            for name, count in self._topics.items():
                error, end = calls.list_offset(connection, name, 0, calls.LATEST)
                if (error, end) != (0, count):
                    self._object(
                        f"{when} {name!r:.60} ends at {end} with error {error}; {count} were produced"
                    )

    # Everything else that has a name

    def _group(self, name: Name) -> None:
        connection = self._connection
        way = self._rng.choice(
            ["commit", "committed", "join", "member", "instance", "metadata", "heartbeat", "delete"]
        )
        requests: dict[str, Callable[[], int]] = {
            "commit": lambda: max(calls.commit(connection, name, {("absent", 0): 1}), default=0),
            "committed": lambda: calls.committed(connection, name, [("absent", 0)])[0],
            "join": lambda: calls.join(connection, name).error,
            "member": lambda: calls.join(connection, "g", member_id=name).error,
            "instance": lambda: calls.join(connection, f"g{self._rng.random()}", instance_id=name).error,
            "metadata": lambda: max(
                calls.commit(connection, "g", {("absent", 0): 1}, metadata=name), default=0
            ),
            "heartbeat": lambda: calls.heartbeat(connection, name, 1, name),
            "delete": lambda: connection.ask(42, 1, array([string(name)]), _first_group_error),
        }
        if requests[way]() == _SERVER_ERROR:
            self._object(f"{way} with the group's name {name!r:.60} failed inside the broker")

    def _client(self, name: Name) -> None:
        with Connection(self._broker.port, client_id=name) as connection:
            calls.topics(connection, [])

    def _transaction(self, name: Name) -> None:
        if calls.init_producer_id(self._connection, name)[0] == _SERVER_ERROR:
            self._object(f"transactional id {name!r:.60} failed inside the broker")

    def _setting(self, name: Name) -> None:
        if self._rng.random() < 0.5:
            configs: dict[Name, Name | None] = {name: "1"}
        else:
            configs = {self._rng.choice(["retention.ms", "compression.type", "cleanup.policy"]): name}
        topic = f"settings-{self._rng.randint(0, 3)}"
        error = calls.create_topic(self._connection, topic, 1, configs)
        if error == _OK:
            self._topics.setdefault(topic, 0)
            if next(iter(configs)) == name:
                self._object(f"a setting called {name!r:.60} was taken")
        elif error == _SERVER_ERROR:
            self._object(f"the setting {name!r:.60} failed inside the broker")


def _first_group_error(reader: Reader) -> int:
    reader.int32()
    reader.int32()
    reader.string()
    return reader.int16()


# The tree around the data directory


def plant(world: Path) -> None:
    for directory in (world, world / "here", world / "x", world.parent / "x"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "canary").write_text(f"the canary of {directory.name}\n")
    (world / "here" / "lock").write_text("")
    (world / "here" / "mark").symlink_to(world / "canary")


def tree(root: Path, besides: Path) -> Iterator[tuple[str, str]]:
    """Everything under ``root`` but not under ``besides``: where it is, what it is."""
    for path in sorted(root.rglob("*")):
        if path == besides or besides in path.parents:
            continue
        status = path.lstat()
        content = "" if path.is_dir() or path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        # A directory's time changes with any name in it, also one that came and went.
        touched = status.st_mtime_ns if path != besides.parent else 0
        yield str(path.relative_to(root)), f"{status.st_mode} {status.st_size} {touched} {content}"


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    odd = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"outside the data directory {name!r} was made, changed or removed" for name in odd]


def _strangers(data: Path) -> list[str]:
    """Files in the data directory that are of no known kind."""
    found = [str(path.relative_to(data)) for path in data.rglob("*") if not path.is_dir()]
    return [f"{name!r} lies in the data directory" for name in found if not _KNOWN_FILES.fullmatch(name)]
