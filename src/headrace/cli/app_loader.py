"""Imports the user's app from ``module:app``, with the current directory first on Python's path.

An error names the missing module, the missing variable, or the line of the user's file that raised.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.app import App
from headrace.app_argument import set_app_argument
from headrace.cli.errors import BrokerUnreachable, CliError, UsageError, ViewUnknown
from headrace.cli.session import Session
from headrace.client.errors import LogError
from headrace.errors import HeadraceError
from headrace.model.declarations import View
from headrace.model.graph import check

__all__ = ["AppNotLoaded", "load_app", "load_checked_app", "load_object", "serving_view", "views_of"]

_PACKAGE_DIR = str(Path(__file__).resolve().parents[1])


class AppNotLoaded(CliError):
    code = "HR-CLI-APP"


def load_app(name: str) -> App:
    app = load_object(name, default="app")
    set_app_argument(name)
    if not isinstance(app, App):
        raise AppNotLoaded(
            f"{name} is a {type(app).__name__}, not an App",
            hint="name the variable that holds headrace.App(...)",
        )
    return app


def load_checked_app(name: str) -> App:
    """Load an app and check all its declarations. A command must not use an app with mistakes."""
    app = load_app(name)
    check(app)
    return app


def load_object(name: str, *, default: str = "") -> Any:
    """Import the object that ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or default
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UsageError(
            f"{name!r} does not name an app", hint="write module:variable, for example examples.shop:app"
        )
    module = _import(module_name)
    if not hasattr(module, attribute):
        apps = [variable for variable, value in vars(module).items() if isinstance(value, App)]
        raise AppNotLoaded(
            f"module {module_name} has no variable {attribute!r}",
            hint=f"apps in the module: {', '.join(apps)}" if apps else "the module has no App",
        )
    return getattr(module, attribute)


def _import(name: str) -> Any:
    current_dir = str(Path.cwd())
    if current_dir not in sys.path:
        sys.path.insert(0, current_dir)
    try:
        return importlib.import_module(name)
    except HeadraceError:
        raise  # The error already names the user's line.
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotLoaded(
                f"no module {error.name!r} in {current_dir} or among the installed packages",
                hint="run the command in the module's folder, or write the module's full name, e.g. package.module",
            ) from error
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> AppNotLoaded:
    needs_spark = isinstance(error, ModuleNotFoundError) and error.name in ("pyspark", "pyarrow", "pandas")
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return AppNotLoaded(
        f"{_source_line(error)}{type(error).__name__}: {message}",
        detail=f"while importing {name}",
        hint="pip install 'headrace[spark]'" if needs_spark else "-v prints the stack trace",
    )


def _source_line(error: BaseException) -> str:
    """Return ``FILE:LINE: `` of the innermost stack frame outside this package and Python's import machinery."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE_DIR, "<"))
        and Path(frame.filename).parent.name != "importlib"
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


def views_of(app: App, names: Sequence[str] | None) -> list[View]:
    """Return the named views of the app, without repeats; all views if ``names`` is empty."""
    views = {view.name: view for view in app.views}
    unknown = [name for name in names or () if name not in views]
    if unknown:
        raise ViewUnknown(app.name, unknown[0], list(views))
    return [views[name] for name in dict.fromkeys(names)] if names else list(views.values())


def serving_view(session: Session, app: App, name: str) -> str:
    """Return the view that serves readers of ``name``, which ``headrace view switch`` can change.

    Return ``name`` itself if no broker responds.
    """
    from headrace.client.view_names import names_of

    try:
        return names_of(session.cluster(), app.name).get(name, name)
    except (BrokerUnreachable, LogError):
        return name
