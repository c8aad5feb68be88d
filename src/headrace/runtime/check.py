"""Checks a whole app without starting it: declarations, functions of flows, and schemas against recorded schemas.

All findings are returned. A declaration with a mistake is left out of the later steps, whose findings would only be
consequences. Flows are compiled on Spark, as when the app starts, but no flow is started.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.model.declarations import source_topics
from headrace.model.errors import AppError, AppMistakes, SourceLocation
from headrace.model.graph import check
from headrace.model.schema_version import SchemaFile, next_version
from headrace.ops.schemas.history import static_mistakes
from headrace.ops.schemas.start import check_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["compare_with_file", "compile_mistakes", "declaration_mistakes", "log_mistakes", "updated_file"]

_CONSEQUENCES = {"HR-APP-NO-KEY", "HR-APP-NO-SCHEMA"}


def declaration_mistakes(app: App, incomplete: set[SourceLocation]) -> list[AppError]:
    """Return the mistakes of the declarations. A declaration at an ``incomplete`` line has another mistake, because of
    which it lacks its schema or key.
    """
    try:
        check(app)
    except AppMistakes as found:
        views = (*app.views, *app.computed)
        lines = incomplete | {view.location for view in views if view.topic.location in incomplete}
        return [
            mistake
            for mistake in found.mistakes
            if not (mistake.code in _CONSEQUENCES and mistake.location in lines)
        ]
    return []


def compile_mistakes(app: App, spark: SparkSession, known: set[SourceLocation | None]) -> list[AppError]:
    """Compile the flows. Flows at the ``known`` lines, or with topics declared there, are left out."""
    from headrace.flow.compile.compiler import compile_app

    sound = copy.copy(app)
    sound.flows = [
        flow
        for flow in app.flows
        if flow.location not in known
        and all(topic.location not in known for topic in (*flow.reads, flow.writes))
    ]
    try:
        compile_app(spark, sound)
    except AppMistakes as found:
        return list(found.mistakes)
    return []


def compare_with_file(app: App, file: SchemaFile, name: str) -> list[AppError]:
    """Compare the declared schemas with those of a file, and return also what the file lacks."""
    mistakes = []
    for topic in source_topics(app):
        versions = file.of(topic.name)
        incompatible = static_mistakes(topic, versions)
        mistakes += incompatible
        if not incompatible and next_version(versions, topic) is not None:
            what = "has no schema of" if not versions else "does not have the current schema of"
            mistakes.append(
                AppError(
                    f"{name} {what} topic {topic.name!r}",
                    location=topic.location,
                    code="HR-CHECK-SCHEMAS",
                    hint=f"run headrace check {app_argument()} --schemas {name} --write-schemas, and check the file in",
                )
            )
    return mistakes


def updated_file(app: App, file: SchemaFile | None) -> SchemaFile:
    """Return the file with the declared schemas. Earlier versions remain, because the log may have their records."""
    schemas = list(file.schemas) if file else []
    for topic in source_topics(app):
        new = next_version([version for version in schemas if version.topic == topic.name], topic)
        if new is not None:
            schemas = [version for version in schemas if version.log_key != new.log_key] + [new]
    return SchemaFile(app.name, schemas)


def log_mistakes(app: App, cluster: Cluster) -> Sequence[AppError]:
    """Compare the schemas with the recorded schemas and the records of a log. Writes nothing."""
    return check_history(cluster, app, SystemClock().now_ms()).mistakes
