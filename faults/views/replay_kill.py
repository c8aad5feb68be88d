"""Two servers replay the same dead letters at the same time. Meanwhile the servers and the log are killed with SIGKILL.

A killed server is restarted and gets the same request. At the end every letter's record must be in its original topic
once, for read-committed readers, and a further replay of all letters must report that none is left to replay.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.servers.serve_process import ServeProcess
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic
from headrace.client.records import read
from headrace.errors import HeadraceError

__all__ = ["UNPROTECTED", "run"]

FAULT = "replay"
UNPROTECTED = {"letter-states": r"^\d+ duplicated$", "replay-fence": r"^\d+ duplicated$"}
_APP = "faults.serve.shop_app:app"
_TOPIC = "shop-orders"
_DEAD = "shop.shop-orders-view.dead"
_PATH = f"/v1/dead/{_DEAD}/replay"
_PARTITIONS = 2
_WAIT_S = 60.0


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "letter-states",
    kills: Sequence[str] = ("both", "log", "server"),
    letters: int = 2_000,
) -> Outcome:
    """``kills`` contains "server", "both" and "log"."""
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        scene = _Scene(home, broker, random.Random(seed), outcome, letters, "" if protected else without)
        try:
            scene.play(kills)
            scene.judge()
        finally:
            scene.end()
        outcome.problems += broker.unexpected_exceptions()
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


class _Scene:
    def __init__(
        self,
        home: Path,
        broker: BrokerProcess,
        rng: random.Random,
        outcome: Outcome,
        letters: int,
        without: str,
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self._letters = letters
        self._cluster = Cluster(broker.bootstrap, timeout_s=5.0)
        self._write_letters()
        self._servers = [
            ServeProcess(home / name, _APP, broker.bootstrap, {}, without=without) for name in ("one", "two")
        ]
        for server in self._servers:
            server.start()

    def _write_letters(self) -> None:
        cluster = self._cluster
        cluster.ensure_topic(_TOPIC, _PARTITIONS)
        ensure_dead_letter_topic(cluster, _DEAD, [_TOPIC])
        producer = cluster.producer({"linger.ms": 5})
        for number in range(self._letters):
            origin = {"topic": _TOPIC, "partition": number % _PARTITIONS, "offset": number}
            headers = [(f"__headrace.errors.{name}", str(value).encode()) for name, value in origin.items()]
            producer.produce(_DEAD, key=b"k", value=b"%d" % number, headers=[*headers])
        if producer.flush(_WAIT_S):
            raise AssertionError("the dead letters could not be written")

    # Actions

    def play(self, kills: Sequence[str]) -> None:
        for target in kills:
            before = self._ends()
            for server in self._servers:
                threading.Thread(target=_request, args=(server.port, "POST"), daemon=True).start()
            self._wait_for_more(before)
            time.sleep(self._rng.uniform(0, 0.05))
            self._kill_and_restart(target)
        for server in self._servers:
            self._finish(server)

    def _ends(self) -> int:
        return sum(self._cluster.ends(_TOPIC).values())

    def _wait_for_more(self, count: int) -> None:
        """Wait until a part of the replay is written, or the replay has ended because nothing was left to do."""
        deadline = time.monotonic() + _WAIT_S
        while self._ends() <= count:
            states = [(_request(server.port, "GET") or {}).get("state") for server in self._servers]
            if all(state == "done" for state in states):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no replay has written a record within {_WAIT_S:.0f} s: {states}")

    def _kill_and_restart(self, target: str) -> None:
        if target == "log":
            self._broker.kill()
            time.sleep(self._rng.uniform(0, 0.2))
            self._broker.start()
            self._note_hit()
            return
        killed = self._servers if target == "both" else [self._rng.choice(self._servers)]
        for server in killed:
            server.kill()
        self._note_hit()
        for server in killed:
            server.start()

    def _note_hit(self) -> None:
        """Count a hit if the replay is incomplete. Transaction markers have offsets too, so after a complete replay the
        end offsets exceed the number of letters.
        """
        self._outcome.hits += self._ends() < self._letters

    def _finish(self, server: ServeProcess) -> None:
        """Repeat the request until nothing is left to do."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            status = _request(server.port, "POST")
            while status is not None and status.get("state") == "running":
                time.sleep(0.02)
                status = _request(server.port, "GET")
            if status is not None and status.get("state") == "done":
                if sum(status["totals"][kind] for kind in ("skipped", "written")) != self._letters:
                    self._outcome.problems.append(f"a complete replay reported the totals {status['totals']}")
                return
            time.sleep(0.1)
        self._outcome.problems.append(
            f"no replay completed within {_WAIT_S:.0f} s; the last status is {status}"
        )

    # Results

    def _written(self) -> Counter[bytes]:
        for _ in range(100):
            try:
                ends = self._cluster.ends(_TOPIC)
                messages = read(
                    self._cluster, _TOPIC, {partition: (0, end) for partition, end in ends.items()}
                )
                return Counter(message.value() or b"" for message in messages)
            except HeadraceError:
                time.sleep(0.05)
        raise AssertionError("the topic cannot be read")

    def judge(self) -> None:
        counts = self._written()
        expected = {b"%d" % number for number in range(self._letters)}
        self._outcome.lost += len(expected - set(counts))
        self._outcome.duplicated += sum(count - 1 for count in counts.values())
        if unexpected := sorted(set(counts) - expected):
            self._outcome.problems.append(
                f"{len(unexpected)} records do not belong to a letter: {unexpected[:3]}"
            )
        self._outcome.problems += [
            f"the server logged an unexpected exception:\n{fault}"
            for server in self._servers
            for fault in server.unexpected_exceptions()
        ]

    def end(self) -> None:
        for server in self._servers:
            server.kill()


def _request(port: int, method: str) -> dict[str, Any] | None:
    """Return the body of a 200 or 202 response, otherwise None."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
    try:
        body = b'{"letters": "all"}' if method == "POST" else None
        connection.request(method, _PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        return document if isinstance(document, dict) and answer.status in (200, 202) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
