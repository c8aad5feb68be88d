"""Two servers write the same dead letters back at the same time, and they and the log are killed (SIGKILL) meanwhile.

Whoever is killed is started again and asked for the same. What must hold: in the end every letter's record is once in
the topic that it came from, for everybody who reads what is committed; and a replay of all says that there is nothing
left to do.
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

from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.serve_process import ServeProcess
from bench.faults.workplace import workplace
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_letters
from headrace.client.reading import read
from headrace.errors import HeadraceError

__all__ = ["UNPROTECTED", "run"]

FAULT = "replay"
UNPROTECTED = {"replay-marks": r"^\d+ duplicated$", "replay-fence": r"^\d+ duplicated$"}
_APP = "tests.serve.shop:app"
_TOPIC = "shop-orders"
_DEAD = "shop-orders-view.dead"
_PATH = f"/v1/dead/{_DEAD}/replay"
_PARTITIONS = 2
_WAIT_S = 60.0


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "replay-marks",
    kills: Sequence[str] = ("both", "log", "server"),
    letters: int = 2_000,
) -> Outcome:
    """``kills`` are of "server", "both" and "log"."""
    outcome = Outcome(FAULT, seed)
    with (
        workplace(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home / "log", forked=True) as broker,
    ):
        broker.start()
        scene = _Scene(home, broker, random.Random(seed), outcome, letters, "" if protected else without)
        try:
            scene.play(kills)
            scene.judge()
        finally:
            scene.end()
        outcome.problems += broker.traces()
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
        ensure_letters(cluster, _DEAD, [_TOPIC])
        producer = cluster.producer({"linger.ms": 5})
        for number in range(self._letters):
            place = {"topic": _TOPIC, "partition": number % _PARTITIONS, "offset": number}
            headers = [(f"__headrace.errors.{name}", str(told).encode()) for name, told in place.items()]
            producer.produce(_DEAD, key=b"k", value=b"%d" % number, headers=[*headers])
        if producer.flush(_WAIT_S):
            raise AssertionError("the letters could not be written")

    # What happens

    def play(self, kills: Sequence[str]) -> None:
        for what in kills:
            before = self._ends()
            for server in self._servers:
                threading.Thread(target=_ask, args=(server.port, "POST"), daemon=True).start()
            self._wait_for_more(before)
            time.sleep(self._rng.uniform(0, 0.05))
            self._strike(what)
        for server in self._servers:
            self._finish(server)

    def _ends(self) -> int:
        return sum(self._cluster.ends(_TOPIC).values())

    def _wait_for_more(self, than: int) -> None:
        """Until something of the replay is there; or it is over, where there was nothing left to do."""
        deadline = time.monotonic() + _WAIT_S
        while self._ends() <= than:
            states = [(_ask(one.port, "GET") or {}).get("state") for one in self._servers]
            if all(one == "done" for one in states):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no replay has written anything within {_WAIT_S:.0f} s: {states}")

    def _strike(self, what: str) -> None:
        if what == "log":
            self._broker.kill()
            time.sleep(self._rng.uniform(0, 0.2))
            self._broker.start()
            self._note_hit()
            return
        struck = self._servers if what == "both" else [self._rng.choice(self._servers)]
        for server in struck:
            server.kill()
        self._note_hit()
        for server in struck:
            server.start()

    def _note_hit(self) -> None:
        """In the middle: not everything is there. Offsets are more than records, so that none is counted in error."""
        self._outcome.hits += self._ends() < self._letters

    def _finish(self, server: ServeProcess) -> None:
        """Asked for until there is nothing left to do."""
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            told = _ask(server.port, "POST")
            while told is not None and told.get("state") == "running":
                time.sleep(0.02)
                told = _ask(server.port, "GET")
            if told is not None and told.get("state") == "done":
                if sum(told["totals"][one] for one in ("already", "written")) != self._letters:
                    self._outcome.problems.append(f"a whole replay ended with {told['totals']}")
                return
            time.sleep(0.1)
        self._outcome.problems.append(
            f"no replay came to its end within {_WAIT_S:.0f} s; the last said {told}"
        )

    # What came of it

    def _written(self) -> Counter[bytes]:
        for _ in range(100):
            try:
                ends = self._cluster.ends(_TOPIC)
                found = read(self._cluster, _TOPIC, {one: (0, end) for one, end in ends.items()})
                return Counter(one.value() or b"" for one in found)
            except HeadraceError:
                time.sleep(0.05)
        raise AssertionError("the log does not say what is in it")

    def judge(self) -> None:
        seen = self._written()
        wanted = {b"%d" % number for number in range(self._letters)}
        self._outcome.lost += len(wanted - set(seen))
        self._outcome.duplicated += sum(count - 1 for count in seen.values())
        if strangers := sorted(set(seen) - wanted):
            self._outcome.problems.append(f"{len(strangers)} records are no letter's: {strangers[:3]}")
        self._outcome.problems += [
            f"the server did not foresee:\n{one}" for server in self._servers for one in server.faults()
        ]

    def end(self) -> None:
        for server in self._servers:
            server.kill()


def _ask(port: int, method: str) -> dict[str, Any] | None:
    """None where nobody answers, or something else is in the way."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_WAIT_S)
    try:
        body = b'{"letters": "all"}' if method == "POST" else None
        connection.request(method, _PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        return told if isinstance(told, dict) and answer.status in (200, 202) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
