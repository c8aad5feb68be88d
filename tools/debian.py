"""Debian packages that the tests need: installed as root, asked for otherwise."""

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

# Debian keeps the server's programs out of everybody's way, a folder for each version.
POSTGRES_FOLDERS = "/usr/lib/postgresql/*/bin"


@dataclass(frozen=True)
class Package:
    name: str
    command: str
    why: str
    folders: str = ""
    """Where the command is looked for beside the path: a pattern."""


TEST_PACKAGES = (
    Package("kcat", "kcat", "a stock Kafka client that the wire tests drive"),
    Package("strace", "strace", "the crash tests make single system calls fail with it"),
    Package("postgresql", "postgres", "the tests of views in PostgreSQL start a server", POSTGRES_FOLDERS),
    Package("redis-server", "redis-server", "the tests of views in Redis start a server"),
    Package("chromium", "chromium", "the tests of the client for pages run it there"),
)


def find(command: str, folders: str = "") -> str | None:
    """The command's path: in the last folder that the pattern finds, which is the newest version's, or on the path."""
    places = sorted(glob.glob(folders), key=lambda one: [int(part) for part in re.findall(r"\d+", one)])  # noqa: PTH207
    return next(
        (found for place in reversed(places) if (found := shutil.which(command, path=place))),
        shutil.which(command),
    )


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(names: Sequence[str], why: str) -> None:
    """Install the packages, refreshing the package lists only when the ones at hand do not do."""
    say(f"apt: {' '.join(names)}", why)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]
    command_text = f"apt-get update && apt-get install {' '.join(names)}"
    if all(_has_candidate(name) for name in names):
        try:
            run(command, failing="", hint="", doing="installing", env=quiet)
        except SetupError:
            say("apt: refreshing the package lists", "the ones on this machine may be out of date")
        else:
            return
    hint = f"see what it says above, then run: {command_text}"
    run(["apt-get", "update", "-q"], failing="apt-get update failed", hint=hint, env=quiet)
    run(
        command,
        failing=f"apt-get could not install {' '.join(names)}",
        hint=hint,
        doing="installing",
        env=quiet,
    )


def first_available(names: Sequence[str]) -> str | None:
    """The first of the packages that this release of Debian or Ubuntu has."""
    for attempt in ("as it is", "refreshed"):
        if attempt == "refreshed":
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
    """Make every package's command be there, or say which are missing and how to get them."""
    missing = [package for package in packages if find(package.command, package.folders) is None]
    if not missing:
        return
    names = [package.name for package in missing]
    if not may_install:
        raise SetupError(
            f"the tests need {' and '.join(names)}, which this machine does not have",
            detail="\n".join(f"{package.name}: {package.why}" for package in missing),
            hint=f"sudo apt-get install {' '.join(names)}   (or your system's packages of the same names)",
        )
    for package in missing:
        install([package.name], package.why)


def _has_candidate(name: str) -> bool:
    if shutil.which("apt-cache") is None:
        return False
    said = subprocess.run(["apt-cache", "policy", name], capture_output=True, text=True, check=False).stdout
    return "Candidate:" in said and "Candidate: (none)" not in said
