"""A C compiler with Python's headers, for the one module that is quicker in C and works without.

``make run`` takes one if it is there. The tests hold the C code against the Python code, so they need it.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from tools import debian
from tools.console import SetupError

__all__ = ["provide", "trouble"]

_WHY = "the tests compare headrace's C part with its Python part"


def trouble() -> str:
    """What is missing to compile the C part, or nothing."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return "there is no C compiler (cc)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "Python's headers (Python.h) are missing"
    return ""


def provide() -> None:
    """Make sure that the C part can be compiled, or say what to install."""
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
            hint=f"sudo apt-get install {' '.join(names)}   (or your system's packages of the same names)",
        )
    debian.install(names, _WHY)
    missing = trouble()
    if missing:
        raise SetupError(
            f"the C part cannot be compiled: {missing}", hint=f"sudo apt-get install {headers}, and run again"
        )
