"""Is the app itself in order: it can be imported, it has no mistakes, and the stores of its views can be opened."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from headrace.app import App
from headrace.cli.app_loading import load_app
from headrace.cli.doctor.finding import Finding, fine, missing
from headrace.errors import HeadraceError
from headrace.model.address import shown
from headrace.model.errors import AppMistakes
from headrace.model.extras import needing
from headrace.model.graph import check
from headrace.model.store import Delta, Postgres, Redis, Search, SQLite
from headrace.model.store_place import file_of
from headrace.model.view import View
from headrace.settings import Settings
from headrace.views.opening import open_reader

__all__ = ["load_for_a_look", "look_at_stores"]


def load_for_a_look(name: str) -> tuple[App | None, list[Finding]]:
    """The app, if it can be loaded, and what is to be said about it."""
    try:
        app = load_app(name)
        check(app)
    except AppMistakes as error:
        return None, [
            missing("app", f"{one.place}: {one.message}", one.hint or "mend that line")
            for one in error.mistakes
        ]
    except HeadraceError as error:
        told = f"{error.message}" + (f" ({error.detail})" if error.detail else "")
        return None, [missing("app", told, error.hint)]
    counts = f"{len(app.topics)} topics, {len(app.flows)} flows, {len(app.views)} views"
    return app, [fine("app", f"app {app.name}: {counts}")]


def look_at_stores(app: App, settings: Settings) -> Iterator[Finding]:
    files: dict[Path, list[str]] = {}
    for view in app.views:
        path = file_of(view, app.name, settings.data)
        if isinstance(view.store, SQLite) and path is not None:
            files.setdefault(path, []).append(view.name)
    for path, views in files.items():
        yield _sqlite(path, ", ".join(views))
    schemas: dict[Postgres, list[str]] = {}
    for view in app.views:
        if isinstance(view.store, Postgres):
            schemas.setdefault(view.store, []).append(view.name)
    for store, views in schemas.items():
        yield _postgres(store, ", ".join(views))
    servers: dict[str, list[str]] = {}
    for view in app.views:
        if isinstance(view.store, Redis):
            servers.setdefault(view.store.url, []).append(view.name)
    for url, views in servers.items():
        yield _redis(url, ", ".join(views))
    yield from _folders(app, settings)


def _postgres(store: Postgres, views: str) -> Finding:
    where = f"{shown(store.url)}, schema {store.schema}, for {views}"
    try:
        with needing("postgres", "psycopg"):
            from headrace.views.postgres.checking import check as look
        is_made = look(store.url, store.schema)
    except HeadraceError as error:
        return missing("store", f"{where}: {error.message}", error.hint)
    return fine("store", where if is_made else f"{where}: made by the first start")


def _redis(url: str, views: str) -> Finding:
    where = f"{shown(url)}, for {views}"
    try:
        with needing("redis", "redis"):
            from headrace.views.redis.checking import check as look
        version = look(url)
    except HeadraceError as error:
        return missing("store", f"{where}: {error.message}", error.hint)
    return fine("store", f"{where}: {version}")


def _folders(app: App, settings: Settings) -> Iterator[Finding]:
    """Stores that are folders: the library is there, and what is there can be opened."""
    folders: dict[tuple[type, Path], list[View]] = {}
    for view in app.views:
        path = file_of(view, app.name, settings.data)
        if isinstance(view.store, (Search, Delta)) and path is not None:
            folders.setdefault((type(view.store), path), []).append(view)
    for (_, path), views in folders.items():
        yield _folder(app, path, views, settings.data)


def _folder(app: App, path: Path, views: list[View], data: Path) -> Finding:
    told = f"{path}, for {', '.join(one.name for one in views)}"
    extra, library = ("search", "tantivy") if isinstance(views[0].store, Search) else ("delta", "deltalake")
    if importlib.util.find_spec(library) is None:
        return missing("store", f"{told}: {library} is not installed", f"pip install 'headrace[{extra}]'")
    if not path.exists():
        return _unmade(path, told, "name another folder")
    if not os.access(path, os.W_OK | os.X_OK):
        return missing("store", f"{told}, cannot be written", "change who may write to it")
    try:
        reader = open_reader(views[0], app.name, data)
        if reader is not None:
            with contextlib.closing(reader):
                reader.known()
    except HeadraceError as error:
        return missing("store", f"{told}, cannot be opened: {error.message}", error.hint)
    return fine("store", told)


def _sqlite(path: Path, views: str) -> Finding:
    if not path.exists():
        return _unmade(path, f"{path}, for {views}", "name another file")
    try:
        address = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=5)) as store:
            store.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        return missing(
            "store",
            f"{path}, for {views}, cannot be opened: {error}",
            "move the file away: its views are then built again from the log",
        )
    if not os.access(path, os.W_OK):
        return missing("store", f"{path}, for {views}, cannot be written", "change who may write to it")
    return fine("store", f"{path}, for {views}")


def _unmade(path: Path, told: str, hint: str) -> Finding:
    parent = next(one for one in path.absolute().parents if one.exists())
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return fine("store", f"{told}: made by the first start")
    return missing("store", f"{told}, cannot be made: {parent} cannot be written", hint)
