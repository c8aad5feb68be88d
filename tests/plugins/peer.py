"""What fails against Apache Kafka, or with kafka-python, is tried again, twice at most.

A scenario runs against both servers with every client. Apache Kafka is the reference, and kafka-python, all in Python,
loses its group on a busy machine to pauses of its own, with either server: such a failure says nothing about the
embedded broker. With every other client the broker is what is tested, and gets no second chance.
"""

from __future__ import annotations

import sys

import pytest
from _pytest.runner import runtestprotocol

_TRIES = 3


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not _is_peer_s(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for _ in range(_TRIES - 1):
        if not any(report.failed for report in reports):
            break
        why = "\n".join(report.longreprtext for report in reports if report.failed)
        print(f"\n{item.nodeid} failed: once more\n{why}", file=sys.__stderr__, flush=True)
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _is_peer_s(item: pytest.Item) -> bool:
    """Also where both servers are asked the same: Kafka answers some requests before it does what they say."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        params.get("cluster") == "kafka"
        or params.get("client") == "kafka-python"
        or "kafka_server" in getattr(item, "fixturenames", ())
    )
