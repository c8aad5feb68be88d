"""Proofs by the server itself, without Spark: of views whose topic no flow writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.ops.report import Report
from headrace.ops.verify import Count, Say, Verifier
from headrace.serve.errors import ProofElsewhere
from headrace.settings import Settings

__all__ = ["PlainProver"]


class PlainProver:
    def __init__(self, app: App, cluster: Cluster, data: Path) -> None:
        self._app = app
        self._cluster = cluster
        self._settings = dataclasses.replace(Settings(), data=data)

    def expect_can(self, name: str) -> None:
        view = next(one for one in self._app.views if one.name == name)
        flow = self._app.writer_of(view.topic)
        if flow is not None:
            raise ProofElsewhere(
                f"view {name!r} is derived by flow {flow.name!r} with Spark, which this server does not run",
                hint=f"headrace verify MODULE:APP {name}; or serve with headrace run --serve",
            )

    def verify(self, view: str, say: Say, count: Count) -> Report:
        self.expect_can(view)
        found = next(one for one in self._app.views if one.name == view)
        with Verifier(
            None, self._cluster, self._app, self._settings, (), {}, say=say, count=count
        ) as verifier:
            return verifier.view(found)

    def tasks(self) -> None:
        return None

    def stop_verifying(self) -> None:
        """It ends by itself with the next record that it counts."""
