"""The demo from start to summary."""

from __future__ import annotations

import secrets
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from headrace.cli.client import open_admin, result_of
from headrace.cli.demo.display import Display, choose_display
from headrace.cli.demo.latency import Latencies
from headrace.cli.demo.ledger import Ledger
from headrace.cli.demo.look import GroupLook, Look, TopicLook
from headrace.cli.demo.traffic import GROUPS, SHARES, TOPICS, Counter, Reader, Slowness, Writer
from headrace.cli.errors import BrokerUnreachable, DemoFailed, TopicExists
from headrace.cli.kafka_admin import NewTopic
from headrace.cli.lookup import bounds_of
from headrace.cli.session import Session
from headrace.cli.standing import standings
from headrace.runtime.embedded import BrokerChild

__all__ = ["run_demo"]

DRAIN_TIMEOUT_S = 60.0
JOIN_TIMEOUT_S = 30.0
SLOW_SHARE = 0.6
"""What the slow group can do of what comes in."""


@dataclass(slots=True)
class _Demo:
    session: Session
    child: BrokerChild
    admin: AdminClient
    ledger: Ledger
    writer: Writer
    readers: list[Reader]
    slowness: Slowness
    latencies: Latencies
    began: float
    lag_max: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))
    rss_max: int = 0
    before: dict[str, tuple[int, int]] = field(default_factory=dict)
    looked_at: float = 0.0

    def check(self) -> None:
        self.child.check_alive()
        for worker in (self.writer, *self.readers):
            if worker.failure is not None:
                raise DemoFailed(f"{worker.name} stopped: {worker.failure}")

    def _rate(self, name: str, counter: Counter, passed: float) -> tuple[float, float]:
        records, size = self.before.get(name, (0, 0))
        self.before[name] = (counter.records, counter.bytes)
        return (counter.records - records) / passed, (counter.bytes - size) / passed

    def look(self) -> Look:
        """As another terminal would see it: the broker is asked, except for the rates, which are our clients'."""
        now = time.perf_counter()
        passed = max(now - (self.looked_at or self.began), 1e-3)
        self.looked_at = now
        bounds = bounds_of(
            self.session, self.admin, [(t, n) for t, count in TOPICS.items() for n in range(count)]
        )
        topics = []
        for topic, count in TOPICS.items():
            per_second, bytes_per_second = self._rate(topic, self.writer.counters[topic], passed)
            limits = [bounds[topic, number] for number in range(count)]
            offsets = [one.end for one in limits]
            topics.append(
                TopicLook(
                    topic, offsets, sum(one.end - one.start for one in limits), per_second, bytes_per_second
                )
            )
        found = standings(self.session, self.admin, list(GROUPS))
        groups = []
        for group in GROUPS:
            members = [reader for reader in self.readers if reader.group == group]
            counter = Counter(sum(m.counter.records for m in members), sum(m.counter.bytes for m in members))
            per_second, _ = self._rate(f"group {group}", counter, passed)
            # A partition without a commit has been read from its start: all of it is still to come.
            lag = sum(one.lag or 0 for one in found if one.group == group)
            self.lag_max[group] = max(self.lag_max[group], lag)
            groups.append(GroupLook(group, len(members), list(GROUPS[group]), lag, per_second))
        rss = self.child.rss_bytes()
        self.rss_max = max(self.rss_max, rss or 0)
        return Look(
            now - self.began,
            topics,
            groups,
            self.ledger.acknowledged_count,
            rss,
            self.latencies.percentile(0.5),
            self.latencies.percentile(0.99),
        )


def _make_topics(session: Session, admin: AdminClient) -> None:
    futures = admin.create_topics(
        [NewTopic(name, num_partitions=count) for name, count in TOPICS.items()],
        operation_timeout=session.timeout_s,
        request_timeout=session.timeout_s,
    )
    for name, future in futures.items():
        try:
            result_of(future, session, f"creating topic {name!r}", topic=name)
        except TopicExists:
            continue


def _set_up(session: Session, child: BrokerChild, rate: int) -> _Demo:
    session.bootstrap = child.address
    admin = open_admin(session)
    _make_topics(session, admin)
    run = secrets.token_hex(4)
    ledger = Ledger(GROUPS)
    latencies = Latencies()
    inflow = rate * sum(SHARES[topic] for topic in GROUPS["analytics"])
    slowness = Slowness(inflow * SLOW_SHARE)
    readers = [
        Reader(session, ledger, "billing", run, slowness=None, latencies=latencies),
        Reader(session, ledger, "billing", run, slowness=None, latencies=latencies),
        Reader(session, ledger, "analytics", run, slowness=slowness, latencies=None),
    ]
    writer = Writer(session, ledger, run, rate)
    for reader in readers:
        reader.start()
    deadline = time.perf_counter() + JOIN_TIMEOUT_S
    for reader in readers:
        if not reader.assigned.wait(max(0.0, deadline - time.perf_counter())):
            raise DemoFailed(f"group {reader.group} got no partitions within {JOIN_TIMEOUT_S:g} s")
    writer.start()
    return _Demo(session, child, admin, ledger, writer, readers, slowness, latencies, time.perf_counter())


def _run_until(demo: _Demo, display: Display, seconds: float | None) -> None:
    """Until the time is up or a person has seen enough."""
    end = None if seconds is None else demo.began + seconds
    next_look = demo.began + display.every_s
    try:
        while end is None or time.perf_counter() < end:
            pause_until = next_look if end is None else min(next_look, end)
            time.sleep(max(0.0, pause_until - time.perf_counter()))
            demo.check()
            if time.perf_counter() >= next_look:
                _look(demo, display)
                next_look += display.every_s
    except KeyboardInterrupt:
        demo.session.out.note("stopping; Ctrl-C once more to leave at once")


def _look(demo: _Demo, display: Display) -> None:
    try:
        look = demo.look()
    except BrokerUnreachable:
        # Why it does not answer says more than that it does not.
        demo.child.check_alive()
        raise
    display.show(look)


def _drain(demo: _Demo) -> None:
    """Stop writing, let both groups read what is left, and stop them."""
    demo.writer.stopping.set()
    demo.writer.join(JOIN_TIMEOUT_S + 35)
    demo.slowness.lifted = True
    deadline = time.perf_counter() + DRAIN_TIMEOUT_S
    while demo.ledger.missing() and time.perf_counter() < deadline:
        demo.check()
        time.sleep(0.02)
    for reader in demo.readers:
        reader.stopping.set()
    for reader in demo.readers:
        reader.join(JOIN_TIMEOUT_S)
    demo.check()


def _summary(demo: _Demo, ran_s: float) -> dict[str, Any]:
    ledger = demo.ledger
    return {
        "seconds": round(ran_s, 1),
        "produced": ledger.sent,
        "acknowledged": ledger.acknowledged_count,
        "refused": ledger.refused,
        "groups": {
            name: {
                "read": reading.read,
                "lost": reading.missing,
                "doubled": reading.doubled,
                "altered": reading.altered,
                "unacknowledged": reading.unexplained,
                "lag_max": demo.lag_max[name],
            }
            for name, reading in ledger.groups.items()
        },
        "latency_p50_ms": demo.latencies.percentile(0.5),
        "latency_p99_ms": demo.latencies.percentile(0.99),
        "broker_rss_mb": round(demo.rss_max / 1e6, 1) if demo.rss_max else None,
    }


def _judge(summary: dict[str, Any], writer: Writer) -> None:
    wrong = [
        f"{group} {name} {counts[name]}"
        for group, counts in summary["groups"].items()
        for name in ("lost", "doubled", "altered")
        if counts[name]
    ]
    if summary["produced"] != summary["acknowledged"]:
        missing = summary["produced"] - summary["acknowledged"]
        wrong.append(f"{missing} records were not acknowledged ({writer.first_refusal or 'no answer'})")
    if not summary["acknowledged"]:
        wrong.append("nothing was acknowledged at all")
    if wrong:
        raise DemoFailed("the books do not balance: " + "; ".join(wrong))


def run_demo(session: Session, *, seconds: float | None, data: Path | None, listen: str, rate: int) -> None:
    # A shell that starts us in the background has Ctrl-C ignored; --for or a signal must end us all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        child = BrokerChild(listen, data or scratch / "data", scratch / "broker.log", failure=DemoFailed)
        stack.callback(child.stop)
        demo = _set_up(session, child, rate)
        display = stack.enter_context(choose_display(session, child.address, data))
        _run_until(demo, display, seconds)
        ran_s = time.perf_counter() - demo.began
        _drain(demo)
        _look(demo, display)
        display.finish()
        summary = _summary(demo, ran_s)
        code = child.stop()
        if code:
            raise DemoFailed(f"the broker stopped with exit code {code}", detail="see its log above")
        display.summarise(summary)
        sys.stdout.flush()
        _judge(summary, demo.writer)
