"""Two stories about one join: three sources of a member's profile (``enrich``), and a worker that is killed after it
published its result and before it commits its offset (``a-join-b``).

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
from headrace.client.progress import current

__all__ = ["Outcome", "Plans", "play"]

Plans = dict[str, str | None]
"""The plan of the member, by visit."""

_VISITS = 200
_MEMBERS = 5
_BY_HAND = "member-known-by-hand"


@dataclass
class Outcome:
    """The results of the story, for its test."""

    first: list[Visit]
    second: list[Visit]
    fetched: Plans
    fetched_later: Plans
    copied: Plans
    derived: Plans
    by_hand: Counter[str]
    last: list[Visit]
    exit_code: int
    recorded: bool
    published: Counter[str]


def play(stage: Stage) -> Outcome:
    stage.declare(app)
    first, second, last = (_visits(number) for number in range(3))
    before = [Profile(f"m{number}", f"member {number}", "free") for number in range(_MEMBERS)]
    changed = [Profile("m1", "member 1", "paid"), Profile("m2", "member 2", "paid"), (b"m3", None)]

    stage.say("enrich: three sources for the plan of a visit's member")
    stage.write(profiles, before)
    service = {profile.member_id: profile.plan for profile in before}
    frozen = dict(service)
    with stage.running(app) as run, _serving(service) as address:
        stage.write(visits, first)
        stage.settle(run)
        fetched = _fetch_plans(address, first)
        stage.write(profiles, changed)
        service.update({"m1": "paid", "m2": "paid"})
        del service["m3"]
        stage.write(visits, second)
        stage.settle(run)
        started_s = time.monotonic()
        fetched |= _fetch_plans(address, second)
        request_ms = (time.monotonic() - started_s) * 1_000 / len(second)
        fetched_later = _fetch_plans(address, first + second)
    derived = _plans(stage, known_visits.name)
    stage.say(
        f"  from a service: {2 * _VISITS} requests, {request_ms:.1f} ms each; requested again later,"
        f" {_differing(fetched_later, fetched)} plans differ"
    )
    copied = {visit.visit_id: frozen.get(visit.member_id) for visit in first + second}
    stage.say(f"  from a copy of yesterday: {_differing(copied, fetched)} visits have an outdated plan")
    stage.say(
        f"  from the flow's own table: {_differing(derived, fetched)} visits have another plan"
        " than at the time of the visit"
    )

    stage.say("a-join-b: a worker reads A, joins, publishes to B, and is killed before it commits its offset")
    by_hand = _by_hand(stage)
    stage.say(
        f"  a hand-written worker, restarted: {_duplicates(by_hand)} of {len(by_hand)} visits are in B twice"
    )
    stage.write(visits, last)
    exit_code, recorded = _dying_driver(stage)
    stage.say(
        f"  a flow, killed after publishing: exit code {exit_code}, batch published,"
        f" {'recorded' if recorded else 'not recorded'} by Spark"
    )
    with stage.running(app) as run:
        stage.settle(run)
    published = Counter(str(record.key(), "utf-8") for record in stage.read(known_visits.name))
    stage.say(f"  the flow, restarted: {_duplicates(published)} of {len(published)} visits are in B twice")
    return Outcome(
        first, second, fetched, fetched_later, copied, derived, by_hand, last, exit_code, recorded, published
    )


def _visits(part: int) -> list[Visit]:
    first_at = datetime(2026, 3, 1, 12, part, tzinfo=UTC)
    return [
        Visit(
            f"v{part}-{number:03}",
            f"m{number % _MEMBERS}",
            "/home",
            first_at + timedelta(milliseconds=number),
        )
        for number in range(_VISITS)
    ]


def _differing(plans: Plans, expected: Plans) -> str:
    keys = plans.keys() | expected.keys()
    return f"{sum(plans.get(key, '?') != expected.get(key, '?') for key in keys)} of {len(keys)}"


def _duplicates(published: Counter[str]) -> int:
    return sum(count > 1 for count in published.values())


# The story enrich


@contextmanager
def _serving(plans: dict[str, str]) -> Iterator[str]:
    """Run a service that returns a member's current plan."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(plans.get(self.path.strip("/"))).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write no access log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def _fetch_plans(address: str, visits: list[Visit]) -> Plans:
    plans: Plans = {}
    for visit in visits:
        with urllib.request.urlopen(f"{address}/{visit.member_id}") as response:  # noqa: S310  our own service
            plans[visit.visit_id] = json.load(response)
    return plans


def _plans(stage: Stage, topic: str) -> Plans:
    rows = (json.loads(record.value() or b"") for record in stage.read(topic))
    return {row["visit_id"]: row["plan"] for row in rows}


# The story a-join-b


def _by_hand(stage: Stage) -> Counter[str]:
    """Run a worker that publishes first and then commits its offset. It dies once in between. Returns its rows."""
    stage.cluster.ensure_topic(_BY_HAND, 1)
    for is_killed in (True, False):
        consumer = stage.cluster.consumer({"group.id": "members-by-hand"})
        (position,) = consumer.committed([TopicPartition(visits.name, 0)], 30)
        at, end = max(position.offset, 0), stage.cluster.ends(visits.name)[0]
        producer = stage.cluster.producer()
        for record in stage.read(visits.name)[at:end]:
            producer.produce(_BY_HAND, record.value(), record.key())
        assert producer.flush(30) == 0
        if not is_killed:
            position = TopicPartition(visits.name, 0, end)
            consumer.commit(offsets=[position], asynchronous=False)
        # Closing the consumer does not commit the offset, as if the process had died.
        consumer.close()
    return Counter(str(record.key(), "utf-8") for record in stage.read(_BY_HAND))


def _dying_driver(stage: Stage) -> tuple[int, bool]:
    """Run the driver that kills itself. Returns its exit code, and whether Spark recorded the published batch."""
    before = current(stage.cluster, know_visits.progress_topic)
    driver = stage.start_module("examples.members.driver", str(stage.data))
    output, errors = driver.communicate(timeout=300)
    assert driver.returncode == -signal.SIGKILL, f"{output}\n{errors}"
    after = current(stage.cluster, know_visits.progress_topic)
    assert before is not None
    assert before.last is not None
    assert after is not None
    assert after.last is not None
    assert after.last.batch > before.last.batch, "the driver died before it published a batch"
    [run] = (stage.settings.checkpoints / know_visits.name).iterdir()
    return driver.returncode, any((run / "commits").glob("[0-9]*"))


if __name__ == "__main__":
    on_stage(play)
