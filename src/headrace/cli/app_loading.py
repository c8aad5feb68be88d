"""``module:app`` becomes an App: the user's module is imported as Python would, from the current directory first.

What is wrong with it is told in the user's terms: the module that is not there, the name that is not in it, the line of
their file that raised.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from headrace.app import App
from headrace.cli.errors import CliError, UsageError
from headrace.errors import HeadraceError

__all__ = ["AppNotLoaded", "load_app", "load_object"]

_OWN = str(Path(__file__).resolve().parents[1])


class AppNotLoaded(CliError):
    code = "HR-CLI-APP"


def load_app(name: str) -> App:
    found = load_object(name, default="app")
    if not isinstance(found, App):
        raise AppNotLoaded(
            f"{name} is of type {type(found).__name__}, not an App",
            hint="name the variable that holds headrace.App(...)",
        )
    return found


def load_object(name: str, *, default: str = "") -> Any:
    """What ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or default
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise UsageError(
            f"{name!r} does not name an app", hint="write module:variable, for example examples.shop:app"
        )
    module = _imported(module_name)
    if not hasattr(module, attribute):
        there = [one for one, value in vars(module).items() if isinstance(value, App)]
        raise AppNotLoaded(
            f"{module_name} has no {attribute!r}",
            hint=f"it has the app {', '.join(there)}" if there else "it has no App at all",
        )
    return getattr(module, attribute)


def _imported(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except HeadraceError:
        raise  # It names the user's line by itself.
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotLoaded(
                f"there is no module {error.name!r} in {here}, nor among what is installed",
                hint="run the command from the folder that holds it, or name it as Python would import it",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> AppNotLoaded:
    missing = isinstance(error, ModuleNotFoundError) and error.name in ("pyspark", "pyarrow", "pandas")
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    return AppNotLoaded(
        f"{_place(error)}{type(error).__name__}: {told}",
        detail=f"while importing {name}",
        hint="pip install 'headrace[spark]'" if missing else "-v shows the whole way to it",
    )


def _place(error: BaseException) -> str:
    """The last line outside this package on the way to what went wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if not one.filename.startswith((_OWN, "<"))]
    theirs = [one for one in theirs if Path(one.filename).parent.name != "importlib"]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
