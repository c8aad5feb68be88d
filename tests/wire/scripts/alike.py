"""The same random script against both servers: whatever it asks, they answer alike."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from tests.plugins.kafka_half import KafkaHalf
from tests.support.java_driver import JavaDriver
from tests.support.raw import Raw, raw_connection
from tests.support.server import Server
from tests.wire.scripts.talk import Talk

__all__ = ["check_alike"]

_STEPS_SHOWN = 12


def check_alike(
    headrace: Server,
    kafka: Server,
    kafka_half: KafkaHalf,
    driver: JavaDriver,
    script: Callable[[Talk], None],
    stem: str,
) -> None:
    """The failure names the step that differs, and those before it."""
    ours = _observe(headrace, driver, script, stem)

    def check(theirs: list[tuple[str, Any]]) -> None:
        for at, ((_, found), (label, expected)) in enumerate(zip(ours, theirs, strict=True)):
            before = "\n".join(f"{step}: {noted}" for step, noted in theirs[max(at - _STEPS_SHOWN, 0) : at])
            # The labels are not compared: two batches packed alike may differ by the time that gzip notes in them.
            assert (label, found) == (label, expected), before

    kafka_half.compare(lambda: _observe(kafka, driver, script, stem), check)


def _observe(
    server: Server, driver: JavaDriver, script: Callable[[Talk], None], stem: str
) -> list[tuple[str, Any]]:
    with raw_connection(driver, server.port) as raw:
        stem = f"{stem}-{uuid.uuid4().hex[:6]}"
        talk = Talk(raw, lambda: Raw(driver, server.port), stem, is_kafka=server.name == "kafka")
        script(talk)
        return talk.comparable()
