"""A copy of the views to plant faults in, and one verification of it."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from faults.flows.world import FlowWorld, RunningApp
from headrace.model.declarations import View
from headrace.ops.verify.report import Report
from headrace.ops.verify.verifier import Verifier

__all__ = ["copied", "planted", "verifier", "verify"]


def copied(world: FlowWorld, app: str, folder: Path) -> Path:
    """Copy the app's views as they are now into a folder."""
    source, target = world.home / f"{app}.db", folder / f"{app}.db"
    with (
        contextlib.closing(sqlite3.connect(source)) as original,
        contextlib.closing(sqlite3.connect(target)) as other,
    ):
        original.backup(other)
    return folder


@contextlib.contextmanager
def planted(folder: Path, app: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(folder / f"{app}.db")) as connection, connection:
        yield connection


@contextlib.contextmanager
def verifier(run: RunningApp, data: Path | None = None) -> Iterator[Verifier]:
    world = run.world
    settings = dataclasses.replace(world.settings(), data=data or world.home)
    with Verifier(world.spark, world.cluster, run.app, settings, run.compiled, run.schemas) as created:
        yield created
    assert not list((data or world.home).glob(".verify-*")), "something was left behind"


def verify(run: RunningApp, view: View, data: Path | None = None) -> Report:
    with verifier(run, data) as verification:
        return verification.view(view)
