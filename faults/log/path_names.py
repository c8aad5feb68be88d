"""Fault X24, names as paths: the broker must not use the name of a topic, a group, a client or a setting as a path.

Canary files surround the data directory and the broker's working directory. A run sends generated names in every
request field that accepts a name. Expected: an invalid topic name gets error 17; other names are refused or accepted
without harm. Everything outside the data directory stays the same, byte for byte; inside it are only files of known
kinds. Each created topic exists under exactly its name, also after a kill.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.log.hostile_names import hostile_name, is_text, is_topic_name
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.codec import Reader, array, string
from faults.protocol.connection import Connection, Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess

__all__ = ["UNPROTECTED", "describe_changes", "digests_of_tree", "plant_canaries", "run"]

FAULT = "X24"
UNPROTECTED = {"names": r"^outside the data directory"}
CASES = 100
Name = str | bytes

_TOPIC_OPERATIONS = (
    *("create", "create", "metadata", "produce", "fetch", "delete"),
    *("grow", "alter", "describe", "offsets", "trim"),
)
_OK, _UNKNOWN_TOPIC, _LEADER_UNKNOWN, _INVALID_TOPIC, _EXISTS = 0, 3, 5, 17, 36
_INVALID_REQUEST, _SERVER_ERROR = 42, -1
_RESERVED = "__cluster_metadata"
_KNOWN_FILES = re.compile(
    r"lock|headrace\.json|(metadata|groups|topics/[0-9a-f]{32}/\d{1,9})/(mark|\d{20}\.(log|index|state))",
    re.ASCII,
)


def run(seed: int, *, protected: bool = True, without: str = "names", cases: int = CASES) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    with run_directory(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant_canaries(world)
        starter = ["--chdir", str(world / "here")] + ([] if protected else ["--without", without])
        with BrokerProcess(home / "own", starter=starter, forked=True, data=world / "data") as broker:
            broker.start()
            before = dict(digests_of_tree(home / "a", excluded=broker.data))
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
            outcome.problems += [
                f"the broker logged an unexpected exception:\n{trace}"
                for trace in broker.unexpected_exceptions()
            ]
            outcome.problems += describe_changes(
                before, dict(digests_of_tree(home / "a", excluded=broker.data))
            )
            outcome.problems += _unknown_files(broker.data)
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
        attacks = (
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
            operation = self._rng.choice(attacks)
            try:
                operation(name)
            except Gone as gone:
                # Invalid text cannot be in a request; any other name must get a response.
                if is_text(name):
                    self._report_problem(f"{operation.__name__} {name!r:.60} got no response: {gone}")
                self._connection.close()
                self._connection = Connection(self._broker.port)
        self.expect_topics("at the end")
        self._connection.close()

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    # Topics

    def _topic(self, name: Name) -> None:
        connection = self._connection
        operation = self._rng.choice(_TOPIC_OPERATIONS)
        if operation == "create":
            self._check_created(name, calls.create_topic(connection, name, 1))
        elif operation == "metadata":
            topics = calls.topics(connection, [name], auto_create=True)
            if len(topics) == 1:
                self._check_created(name, topics[0].error)
            else:
                self._report_problem(f"metadata of {name!r:.60} returned {len(topics)} topics instead of one")
        elif operation == "delete":
            self._check_deleted(name, calls.delete_topic(connection, name))
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
            self._check_response(operation, name, requests[operation]())

    def _produce(self, name: Name) -> int:
        text = name if isinstance(name, str) else ""
        error = calls.produce(
            self._connection, name, 0, build_batch([text.encode()], int(time.time() * 1000))
        ).error
        if not error:
            self._topics[text] = self._topics.get(text, 0) + 1
        return error

    def _check_created(self, name: Name, error: int) -> None:
        text = name if isinstance(name, str) else name.decode()
        if not is_topic_name(text):
            if error != _INVALID_TOPIC:
                self._report_problem(f"creating {text!r:.60} got error {error}")
        elif error == _OK:
            self._topics.setdefault(text, 0)
        elif error == _EXISTS:
            if text not in self._topics:
                self._report_problem(
                    f"{text!r:.60} exists according to the response, but no client created it"
                )
        elif error == _INVALID_TOPIC:
            similar = [other for other in self._topics if other.replace(".", "_") == text.replace(".", "_")]
            if not similar and not text.startswith("__"):
                self._report_problem(f"{text!r:.60} is a valid topic name, but was refused")
        elif error not in (_UNKNOWN_TOPIC, _LEADER_UNKNOWN) and text != _RESERVED:
            self._report_problem(f"creating {text!r:.60} got error {error}")

    def _check_deleted(self, name: Name, error: int) -> None:
        text = name if isinstance(name, str) else name.decode()
        if error == _OK:
            if self._topics.pop(text, None) is None:
                self._report_problem(f"{text!r:.60} was deleted, but no client created it")
        elif text in self._topics or error == _SERVER_ERROR:
            self._report_problem(f"deleting {text!r:.60} got error {error}")

    def _check_response(self, operation: str, name: Name, error: int) -> None:
        text = name if isinstance(name, str) else name.decode()
        if error == _SERVER_ERROR:
            self._report_problem(f"{operation} of {text!r:.60} failed inside the broker")
        # As in Kafka, the empty name stands for default settings, which topics do not have.
        refusals = (
            _UNKNOWN_TOPIC,
            _INVALID_TOPIC,
            *((_INVALID_REQUEST,) if operation == "alter" and not text else ()),
        )
        if not is_topic_name(text) and error not in refusals:
            self._report_problem(
                f"{operation} of {text!r:.60}, which is not a valid topic name, got error {error}"
            )

    def expect_topics(self, when: str) -> None:
        """Check that exactly the created topics exist, each with its own records."""
        with Connection(self._broker.port) as connection:
            names = {topic.name for topic in calls.topics(connection)}
            if names != set(self._topics):
                differing = sorted(names ^ set(self._topics))
                self._report_problem(f"{when} the topics differ from the created ones: {differing[:5]!r}")
            for name, count in self._topics.items():
                error, end = calls.list_offset(connection, name, 0, calls.LATEST)
                if (error, end) != (0, count):
                    self._report_problem(
                        f"{when} {name!r:.60} ends at {end} with error {error}; {count} records were produced"
                    )

    # Other requests with a name

    def _group(self, name: Name) -> None:
        connection = self._connection
        operation = self._rng.choice(
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
            "delete": lambda: connection.call(42, 1, array([string(name)]), _first_group_error),
        }
        if requests[operation]() == _SERVER_ERROR:
            self._report_problem(f"{operation} with the group name {name!r:.60} failed inside the broker")

    def _client(self, name: Name) -> None:
        with Connection(self._broker.port, client_id=name) as connection:
            calls.topics(connection, [])

    def _transaction(self, name: Name) -> None:
        if calls.init_producer_id(self._connection, name)[0] == _SERVER_ERROR:
            self._report_problem(f"transactional id {name!r:.60} failed inside the broker")

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
                self._report_problem(f"an unknown setting {name!r:.60} was accepted")
        elif error == _SERVER_ERROR:
            self._report_problem(f"the setting {name!r:.60} failed inside the broker")


def _first_group_error(reader: Reader) -> int:
    reader.int32()
    reader.int32()
    reader.string()
    return reader.int16()


# Files around the data directory


def plant_canaries(world: Path) -> None:
    for directory in (world, world / "here", world / "x", world.parent / "x"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "canary").write_text(f"the canary of {directory.name}\n")
    (world / "here" / "lock").write_text("")
    (world / "here" / "mark").symlink_to(world / "canary")


def digests_of_tree(root: Path, excluded: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and a digest of everything under ``root`` but not under ``besides``."""
    for path in sorted(root.rglob("*")):
        if path == excluded or excluded in path.parents:
            continue
        status = path.lstat()
        content = "" if path.is_dir() or path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        # A directory's modification time changes when any entry is added or removed, even a temporary file.
        modified_ns = status.st_mtime_ns if path != excluded.parent else 0
        yield str(path.relative_to(root)), f"{status.st_mode} {status.st_size} {modified_ns} {content}"


def describe_changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"outside the data directory {name!r} was created, changed or removed" for name in differing]


def _unknown_files(data: Path) -> list[str]:
    """Report the files in the data directory that are not of a known kind."""
    files = [str(path.relative_to(data)) for path in data.rglob("*") if not path.is_dir()]
    return [f"{name!r} is in the data directory" for name in files if not _KNOWN_FILES.fullmatch(name)]
