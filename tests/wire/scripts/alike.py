"""The same random script against both servers: whatever it asks, they answer alike."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol

from tests.support.java_driver import JavaDriver
from tests.support.raw import Raw, raw_connection
from tests.support.server import Server
from tests.wire.scripts.talk import Talk

__all__ = ["check_alike"]

_STEPS_SHOWN = 12


class RandomScript(Protocol):
    def run(self) -> None: ...


def check_alike(
    servers: tuple[Server, Server],
    driver: JavaDriver,
    script: Callable[[Talk, int], RandomScript],
    stem: str,
    seed: int,
) -> None:
    """``servers`` are the one to be held against the other, and that other. What differs is named with its step, and
    with those before it.
    """
    stem = f"{stem}-{seed}-{uuid.uuid4().hex[:6]}"
    ours, theirs = (_observed(server, driver, script, stem, seed) for server in servers)
    for at, ((_, found), (label, expected)) in enumerate(zip(ours, theirs, strict=True)):
        before = "\n".join(f"{step}: {noted}" for step, noted in theirs[max(at - _STEPS_SHOWN, 0) : at])
        # The labels are not compared: two batches packed alike may differ by the time that gzip notes in them.
        assert (label, found) == (label, expected), before


def _observed(
    server: Server, driver: JavaDriver, script: Callable[[Talk, int], RandomScript], stem: str, seed: int
) -> list[tuple[str, Any]]:
    with raw_connection(driver, server.port) as raw:
        talk = Talk(raw, lambda: Raw(driver, server.port), stem)
        script(talk, seed).run()
        return talk.notes
