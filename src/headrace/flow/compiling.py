"""All flows of an app, looked at in the order in which they build on each other."""

from __future__ import annotations

from pyspark.sql import SparkSession

from headrace.app import App
from headrace.flow.compiled import Compiled, compile_flow
from headrace.flow.group_keys import not_told_apart
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
            mistakes += _mistaken_keys(app, made)
            schemas[flow.writes.name] = made.schema
    if mistakes:
        raise AppMistakes(mistakes)
    return compiled, schemas


def _mistaken_keys(app: App, compiled: Compiled) -> list[AppError]:
    """Of views under another key than their topic's."""
    flow, found = compiled.flow, list[AppError]()
    for view in app.views:
        if view.topic != flow.writes or compiled.fixed is None or not view.key:
            continue
        changing = [name for name in view.key if name not in compiled.fixed]
        found += [changing_key(flow, name, f"view {view.name}", view.place) for name in changing]
        untold = [" or ".join(sorted(names)) for names in compiled.groups if not names & set(view.key)]
        if untold and not changing:
            groups = ", ".join(sorted(untold))
            found.append(not_told_apart(flow, groups, tuple(view.key), f"view {view.name}", view.place))
    return found


def _assume_declared(flow: Flow, schemas: dict[str, Schema]) -> None:
    """So that flows behind one with a mistake are still looked at, where the topic between says what it holds."""
    if flow.writes.schema is not None:
        schemas[flow.writes.name] = flow.writes.schema
