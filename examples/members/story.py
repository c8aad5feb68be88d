"""Two stories of one join: where the profile comes from (``enrich``), and a worker that dies between publishing its
result and saying so (``a-join-b``).

python -m examples.members.story
"""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from confluent_kafka import TopicPartition

from examples.members import Profile, Visit, app, know_visits, known_visits, profiles, visits
from examples.stage import Stage, on_stage
from headrace.client.progress_log import current

__all__ = ["Plans", "Told", "play"]

Plans = dict[str, str | None]
"""Which plan each visit's member was on, by visit."""

_EACH = 200
_MEMBERS = 5
_BY_HAND = "member-known-by-hand"


@dataclass
class Told:
    """What the story found, for whoever wants to hold it against something else."""

    first: list[Visit]
    second: list[Visit]
    asked: Plans
    asked_again: Plans
    frozen: Plans
    derived: Plans
    by_hand: Counter[str]
    last: list[Visit]
    exit_code: int
    noted: bool
    published: Counter[str]


def play(stage: Stage) -> Told:
    stage.declare(app)
    first, second, last = (_visits(number) for number in range(3))
    before = [Profile(f"m{number}", f"member {number}", "free") for number in range(_MEMBERS)]
    changed = [Profile("m1", "member 1", "paid"), Profile("m2", "member 2", "paid"), (b"m3", None)]

    stage.say("enrich: where a visit gets its member's plan from")
    stage.write(profiles, before)
    service = {one.member_id: one.plan for one in before}
    frozen = dict(service)
    with stage.running(app) as run, _serving(service) as address:
        stage.write(visits, first)
        stage.settle(run)
        asked = _ask(address, first)
        stage.write(profiles, changed)
        service.update({"m1": "paid", "m2": "paid"})
        del service["m3"]
        stage.write(visits, second)
        stage.settle(run)
        began = time.monotonic()
        asked |= _ask(address, second)
        a_question_ms = (time.monotonic() - began) * 1_000 / len(second)
        asked_again = _ask(address, first + second)
    derived = _plans(stage, known_visits.name)
    stage.say(
        f"  asked for with each visit: {2 * _EACH} questions, {a_question_ms:.1f} ms each; asked again later,"
        f" {_differing(asked_again, asked)} answers are others"
    )
    copied = {one.visit_id: frozen.get(one.member_id) for one in first + second}
    stage.say(f"  from a copy of yesterday: {_differing(copied, asked)} visits have a plan that is past")
    stage.say(
        f"  from a table kept here: {_differing(derived, asked)} visits have another than at their time"
    )

    stage.say("a-join-b: a worker reads A, joins, publishes to B, and dies before it tells A")
    by_hand = _by_hand(stage)
    stage.say(f"  by hand, and started again: {_twice(by_hand)} of {len(by_hand)} visits are in B twice")
    stage.write(visits, last)
    exit_code, noted = _dying_driver(stage)
    stage.say(
        f"  a flow, killed there: exit code {exit_code}, batch published, {'noted' if noted else 'not noted'} by Spark"
    )
    with stage.running(app) as run:
        stage.settle(run)
    published = Counter(str(record.key(), "utf-8") for record in stage.read(known_visits.name))
    stage.say(f"  and started again: {_twice(published)} of {len(published)} visits are in B twice")
    return Told(
        first, second, asked, asked_again, copied, derived, by_hand, last, exit_code, noted, published
    )


def _visits(part: int) -> list[Visit]:
    began = datetime(2026, 3, 1, 12, part, tzinfo=UTC)
    return [
        Visit(
            f"v{part}-{number:03}", f"m{number % _MEMBERS}", "/home", began + timedelta(milliseconds=number)
        )
        for number in range(_EACH)
    ]


def _differing(found: Plans, expected: Plans) -> str:
    keys = found.keys() | expected.keys()
    return f"{sum(found.get(key, '?') != expected.get(key, '?') for key in keys)} of {len(keys)}"


def _twice(found: Counter[str]) -> int:
    return sum(count > 1 for count in found.values())


# 50, enrich


@contextmanager
def _serving(plans: dict[str, str]) -> Iterator[str]:
    """A service that tells a member's plan as it is now."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = json.dumps(plans.get(self.path.strip("/"))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def _ask(address: str, some: list[Visit]) -> Plans:
    found: Plans = {}
    for visit in some:
        with urllib.request.urlopen(f"{address}/{visit.member_id}") as answer:  # noqa: S310  our own service
            found[visit.visit_id] = json.load(answer)
    return found


def _plans(stage: Stage, topic: str) -> Plans:
    told = (json.loads(record.value() or b"") for record in stage.read(topic))
    return {row["visit_id"]: row["plan"] for row in told}


# 54, a-join-b


def _by_hand(stage: Stage) -> Counter[str]:
    """What a worker publishes that tells A when it is done, and dies once before that."""
    stage.cluster.ensure_topic(_BY_HAND, 1)
    for dies in (True, False):
        consumer = stage.cluster.consumer({"group.id": "members-by-hand"})
        (place,) = consumer.committed([TopicPartition(visits.name, 0)], 30)
        at, end = max(place.offset, 0), stage.cluster.ends(visits.name)[0]
        producer = stage.cluster.producer()
        for record in stage.read(visits.name)[at:end]:
            producer.produce(_BY_HAND, record.value(), record.key())
        assert producer.flush(30) == 0
        if not dies:
            place = TopicPartition(visits.name, 0, end)
            consumer.commit(offsets=[place], asynchronous=False)
        # Its group hears nothing of one that dies, and nothing of one that leaves without a word.
        consumer.close()
    return Counter(str(record.key(), "utf-8") for record in stage.read(_BY_HAND))


def _dying_driver(stage: Stage) -> tuple[int, bool]:
    """How it ended, and whether Spark has noted the batch that it had published."""
    before = current(stage.cluster, know_visits.progress_topic)
    driver = stage.start_module("examples.members.driver", str(stage.data))
    said, complained = driver.communicate(timeout=300)
    assert driver.returncode == -signal.SIGKILL, f"{said}\n{complained}"
    after = current(stage.cluster, know_visits.progress_topic)
    assert before is not None
    assert before.last is not None
    assert after is not None
    assert after.last is not None
    assert after.last.batch > before.last.batch, "it died before it had published anything"
    [run] = (stage.settings.checkpoints / know_visits.name).iterdir()
    return driver.returncode, any((run / "commits").glob("[0-9]*"))


if __name__ == "__main__":
    on_stage(play)
