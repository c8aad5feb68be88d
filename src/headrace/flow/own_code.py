"""Which Python code is the user's own, and which belongs to an installed package."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["OwnCode"]

_SITE = ("site-packages", "dist-packages")
_INSTALLED = tuple(
    str(path) + os.sep
    for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parents[1])
)


@dataclass(frozen=True, slots=True)
class OwnCode:
    home: str
    """The package of the flow's function, as a folder or a file: an app may be installed, too."""

    @classmethod
    def of(cls, function: Any) -> OwnCode:
        while not isinstance(function, FunctionType):
            # A partial function, a method or a callable object.
            inner = getattr(function, "func", None) or getattr(function, "__func__", None)
            function = inner or type(function).__call__
        package = sys.modules.get(function.__module__.partition(".")[0])
        folders = list(getattr(package, "__path__", ()))
        return cls(folders[0] + os.sep if folders else function.__code__.co_filename)

    def has_function(self, function: FunctionType) -> bool:
        """By its file, since a wrapper of a package takes the name of the function that it wraps."""
        file = function.__code__.co_filename
        # Generated code, such as the methods of a dataclass, has no file.
        return self._has_name(function.__module__) if file.startswith("<") else self._has_file(file)

    def has_class(self, found: type) -> bool:
        return self._has_name(found.__module__)

    def has_module(self, module: ModuleType) -> bool:
        return self._has_name(module.__name__)

    def _has_name(self, name: str | None) -> bool:
        root = (name or "").partition(".")[0]
        file = getattr(sys.modules.get(name or ""), "__file__", None)
        return root not in sys.stdlib_module_names and (file is None or self._has_file(file))

    def _has_file(self, file: str) -> bool:
        is_installed = file.startswith(_INSTALLED) or any(part in file for part in _SITE)
        return not is_installed or file.startswith(self.home)
