"""Installs the Debian packages that the tests need. Without root, an error lists the missing packages."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from tools.console import SetupError, run, say

__all__ = [
    "POSTGRES_FOLDERS",
    "TEST_PACKAGES",
    "Package",
    "can_install",
    "find",
    "first_available",
    "install",
    "provide",
]

# Debian installs PostgreSQL's server programs outside PATH, in one directory per version.
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"


@dataclass(frozen=True)
class Package:
    name: str
    command: str
    why: str
    folders: str = ""
    """A glob pattern of directories to search for the command, in addition to PATH."""


TEST_PACKAGES = (
    Package("kcat", "kcat", "a stock Kafka client for the wire tests"),
    Package("strace", "strace", "the crash tests use it to make single system calls fail"),
    Package("postgresql", "postgres", "the tests of views in PostgreSQL start a server", POSTGRES_FOLDERS),
    Package("redis-server", "redis-server", "the tests of views in Redis start a server"),
    Package("chromium", "chromium", "the tests of the JavaScript client run it in a browser"),
    Package(
        "systemd", "systemd-analyze", "the tests check the units in contrib/systemd; nothing starts systemd"
    ),
)


def find(command: str, folders: str = "") -> str | None:
    """Find the path of a command: first in the directories of the pattern, newest version first, then on PATH."""
    matches = glob.glob(folders)  # noqa: PTH207
    directories = sorted(matches, key=lambda path: [int(part) for part in re.findall(r"\d+", path)])
    return next(
        (path for directory in reversed(directories) if (path := shutil.which(command, path=directory))),
        shutil.which(command),
    )


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(names: Sequence[str], why: str) -> None:
    """Install the packages. Refresh the package lists only if the installation with the existing lists fails."""
    say(f"apt: {' '.join(names)}", why)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]
    command_text = f"apt-get update && apt-get install {' '.join(names)}"
    if all(_has_candidate(name) for name in names):
        try:
            run(command, failing="", hint="", doing="installing", env=quiet)
        except SetupError:
            say("apt: refreshing the package lists", "the lists on this machine may be out of date")
        else:
            return
    hint = f"read the output above, then run: {command_text}"
    run(["apt-get", "update", "-q"], failing="apt-get update failed", hint=hint, env=quiet)
    run(
        command,
        failing=f"apt-get could not install {' '.join(names)}",
        hint=hint,
        doing="installing",
        env=quiet,
    )


def first_available(names: Sequence[str]) -> str | None:
    """Return the first package that this release of Debian or Ubuntu has. Refresh the package lists if it has none."""
    for attempt in ("before a refresh", "after a refresh"):
        if attempt == "after a refresh":
            run(
                ["apt-get", "update", "-q"],
                failing="apt-get update failed",
                hint="check the network and /etc/apt",
            )
        for name in names:
            if _has_candidate(name):
                return name
    return None


def provide(packages: Sequence[Package], *, may_install: bool) -> None:
    """Install every missing package. Without ``may_install``, raise ``SetupError`` with the command to install them."""
    missing = [package for package in packages if find(package.command, package.folders) is None]
    if not missing:
        return
    names = [package.name for package in missing]
    if not may_install:
        raise SetupError(
            f"the tests need {' and '.join(names)}: not installed on this machine",
            detail="\n".join(f"{package.name}: {package.why}" for package in missing),
            hint=f"sudo apt-get install {' '.join(names)}   (or the equivalent packages of your system)",
        )
    for package in missing:
        install([package.name], package.why)


def _has_candidate(name: str) -> bool:
    if shutil.which("apt-cache") is None:
        return False
    output = subprocess.run(["apt-cache", "policy", name], capture_output=True, text=True, check=False).stdout
    return "Candidate:" in output and "Candidate: (none)" not in output
