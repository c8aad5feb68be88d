"""Finds or installs a C compiler and Python's headers, for headrace's optional C module.

The C module makes record validation faster. ``make run`` uses a compiler if one exists. The tests need one, because
they compare the C code with the Python code.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from tools import debian
from tools.console import SetupError

__all__ = ["provide", "trouble"]

_WHY = "the tests compare headrace's C module with its Python code"


def trouble() -> str:
    """Return what is missing to compile the C module; an empty string if nothing is missing."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return "no C compiler (cc) was found"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python's headers (Python.h) are missing"
    return ""


def provide() -> None:
    """Install what is missing to compile the C module, or raise ``SetupError`` with the packages to install."""
    missing = trouble()
    if not missing:
        return
    headers = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    names = ["gcc", "libc6-dev"]
    if "Python.h" in missing or sys.prefix == "/usr":
        names.append(headers)
    if not debian.can_install():
        raise SetupError(
            f"the tests need a C compiler and Python's headers: {missing}",
            detail=_WHY,
            hint=f"sudo apt-get install {' '.join(names)}   (or the equivalent packages of your system)",
        )
    debian.install(names, _WHY)
    missing = trouble()
    if missing:
        raise SetupError(
            f"the C module cannot be compiled: {missing}",
            hint=f"sudo apt-get install {headers}, and run again",
        )
