"""All flows of an app, looked at in the order in which they build on each other."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.app import App
from headrace.flow.compiled import Compiled, compile_flow
from headrace.flow.updates import changing_key
from headrace.model.errors import AppError, AppMistakes
from headrace.model.flow import Flow
from headrace.model.schema import Schema

__all__ = ["compile_app"]


def compile_app(spark: SparkSession, app: App) -> tuple[list[Compiled], dict[str, Schema]]:
    """Every flow, and the schema of every topic by name; all mistakes at once."""
    schemas = {topic.name: topic.schema for topic in app.topics if topic.schema is not None}
    compiled: list[Compiled] = []
    mistakes: list[AppError] = []
    waiting = list(app.flows)
    while waiting:
        ready = [flow for flow in waiting if all(topic.name in schemas for topic in flow.reads)]
        if not ready:
            break  # Those behind a mistake cannot be looked at until it is mended.
        for flow in ready:
            waiting.remove(flow)
            try:
                made = compile_flow(spark, flow, schemas)
            except AppError as mistake:
                mistakes.append(mistake)
                _assume_declared(flow, schemas)
                continue
            compiled.append(made)
            mistakes += _changing_keys(app, made)
            schemas[flow.writes.name] = made.schema
    if mistakes:
        raise AppMistakes(mistakes)
    return compiled, schemas


def _changing_keys(app: App, made: Compiled) -> list[AppError]:
    """Of views under another key than their topic's."""
    return [
        changing_key(made.flow, name, f"view {view.name}", view.place)
        for view in app.views
        if view.topic == made.flow.writes and made.fixed is not None
        for name in view.key
        if name not in made.fixed
    ]


def _assume_declared(flow: Flow, schemas: dict[str, Schema]) -> None:
    """So that flows behind one with a mistake are still looked at, where the topic between says what it holds."""
    if flow.writes.schema is not None:
        schemas[flow.writes.name] = flow.writes.schema
