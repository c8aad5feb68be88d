"""Provers verify views. The prover of ``headrace run`` uses Spark; the server's ``PlainProver`` does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Count, Say, Verifier
from headrace.serve.errors import ProofNotAvailable
from headrace.settings import Settings

__all__ = ["PlainProver", "Prover"]


class Prover(Protocol):
    """Thread-safe."""

    def expect_can(self, view: str) -> None:
        """Raise ProofNotAvailable if this process cannot verify the view, or cannot verify it yet."""

    def verify(self, view: str, say: Say, count: Count) -> Report:
        """Verify the view. Block until the proof ends.

        Raises CannotVerify, or an error of the log or the store. If ``say`` or ``count`` raises an error, the proof
        ends.
        """

    def tasks(self) -> tuple[int, int] | None:
        """Return how many Spark tasks of the current proof are finished, and how many it has. None if it runs no Spark
        tasks at this moment.
        """

    def stop_verifying(self) -> None:
        """Cancel the current proof, without waiting for its end."""


class PlainProver:
    """Verifies views whose topic no flow writes. These views do not need Spark."""

    def __init__(self, app: App, cluster: Cluster, data: Path) -> None:
        self._app = app
        self._cluster = cluster
        self._settings = dataclasses.replace(Settings(), data=data)

    def expect_can(self, name: str) -> None:
        view = next(view for view in self._app.views if view.name == name)
        flow = self._app.writer_of(view.topic)
        if flow is not None:
            raise ProofNotAvailable(
                f"view {name!r} is derived by flow {flow.name!r} with Spark, which this server does not run",
                hint=f"run headrace verify {app_argument()} {name}, or start the server with headrace run --serve",
            )

    def verify(self, name: str, say: Say, count: Count) -> Report:
        self.expect_can(name)
        view = next(view for view in self._app.views if view.name == name)
        with Verifier(
            None, self._cluster, self._app, self._settings, (), {}, say=say, count=count
        ) as verifier:
            return verifier.view(view)

    def tasks(self) -> None:
        return None

    def stop_verifying(self) -> None:
        """Do nothing: the next call of ``say`` or ``count`` raises and ends the proof."""
