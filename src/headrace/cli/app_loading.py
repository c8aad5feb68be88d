"""``module:app`` becomes an App: the user's module is imported as Python would, from the current directory first."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from headrace.app import App
from headrace.cli.errors import CliError, UsageError
from headrace.errors import HeadraceError

__all__ = ["AppNotLoaded", "load_app", "load_object"]


class AppNotLoaded(CliError):
    code = "HR-CLI-APP"


def load_app(name: str) -> App:
    found = load_object(name, default="app")
    if not isinstance(found, App):
        raise AppNotLoaded(
            f"{name} is a {type(found).__name__}, not an App",
            hint="name the variable that holds headrace.App(...)",
        )
    return found


def load_object(name: str, *, default: str = "") -> Any:
    """What ``module:attribute`` names."""
    module_name, _, attribute = name.partition(":")
    attribute = attribute or default
    if not module_name or not attribute:
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
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AppNotLoaded(
                f"there is no module {error.name!r} in {here}, nor among what is installed",
                hint="run the command from the folder that holds it, or name it as Python would import it",
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> AppNotLoaded:
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "importlib" not in one.filename and one.filename != __file__]
    missing = isinstance(error, ModuleNotFoundError) and error.name in ("pyspark", "pyarrow", "pandas")
    return AppNotLoaded(
        f"{own[-1].filename}:{own[-1].lineno}: {type(error).__name__}: {error}" if own else str(error),
        detail=f"while importing {name}",
        hint="pip install 'headrace[spark]'" if missing else "-v shows the whole way to it",
    )
