"""Runs the same random script against both servers and compares the responses."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from faults.clients.java_driver import JavaDriver
from faults.servers.server import Server
from tests.plugins.kafka_half import KafkaHalf
from tests.plugins.kafka_recordings import as_json
from tests.support.raw import Raw, raw_connection
from tests.wire.scripts.talk import Conversation

__all__ = ["check_same_responses"]

_STEPS_SHOWN = 12


def check_same_responses(
    headrace: Server,
    kafka_half: KafkaHalf,
    driver: JavaDriver,
    script: Callable[[Conversation], None],
    stem: str,
) -> None:
    """Compare the responses; a failure names the step that differs and the steps before it."""
    ours = as_json(_observe(headrace, driver, script, stem))

    def check(theirs: list[tuple[str, Any]]) -> None:
        for number, ((_, response), (label, expected)) in enumerate(zip(ours, theirs, strict=True)):
            before = "\n".join(
                f"{step}: {recorded}" for step, recorded in theirs[max(number - _STEPS_SHOWN, 0) : number]
            )
            # Do not compare the labels: gzip stores the time in its header, so equal batches may differ in bytes.
            assert (label, response) == (label, expected), before

    kafka_half.compare(lambda kafka: _observe(kafka, driver, script, stem), check)


def _observe(
    server: Server, driver: JavaDriver, script: Callable[[Conversation], None], stem: str
) -> list[tuple[str, Any]]:
    with raw_connection(driver, server.port) as raw:
        stem = f"{stem}-{uuid.uuid4().hex[:6]}"
        talk = Conversation(raw, lambda: Raw(driver, server.port), stem, is_kafka=server.name == "kafka")
        script(talk)
        return talk.comparable()
