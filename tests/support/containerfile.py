"""Parses our Containerfiles, and executes their instructions in a chroot, without a container engine.

Only the instructions that they use are supported; another instruction is an error. A stage with ``FROM debian:RELEASE``
begins with a root file system that debootstrap creates from Debian's packages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Build", "Instruction", "instructions"]

_RUN_S_MAX = 3_600
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_DEBIAN = re.compile(r"debian:(\w+)-slim")
_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE")
"""Variables with a file of certificates, which the commands of an image need at the same path."""
_INHERITED = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", *_CERTIFICATES)


@dataclass(frozen=True)
class Instruction:
    name: str
    text: str
    line: int

    @property
    def words(self) -> list[str]:
        """The arguments: of a JSON list, or separated by blanks."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


def instructions(text: str) -> Iterator[Instruction]:
    """Yield the instructions, with continued lines joined. Comments and blank lines are left out."""
    joined, begin = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not joined and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begin = begin if joined else number
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        name, _, arguments = joined.strip().partition(" ")
        yield Instruction(name, " ".join(arguments.split()), begin)
        joined = ""
    if joined:
        raise ValueError(f"line {begin}: the instruction never ends")


@dataclass
class _Stage:
    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)


class Build:
    """Executes a Containerfile below ``work``. It needs root, debootstrap and a network."""

    def __init__(self, context: Path, work: Path) -> None:
        self._context = context
        self._work = work
        self._arguments: dict[str, str] = {}
        self._named: dict[str, _Stage] = {}
        self._stage: _Stage | None = None

    @property
    def stage(self) -> _Stage:
        assert self._stage is not None, "FROM comes first"
        return self._stage

    def run_file(self, text: str) -> None:
        for instruction in instructions(text):
            self._execute(instruction)

    def _execute(self, instruction: Instruction) -> None:
        text = _VARIABLE.sub(lambda match: self._arguments[match[1]], instruction.text)
        match instruction.name:
            case "ARG":
                name, _, value = text.partition("=")
                self._arguments[name] = value
            case "FROM":
                self._begin(text)
            case "RUN":
                self.run(["/bin/sh", "-c", text], user="0:0")
            case "COPY":
                self._copy(instruction.words)
            case "ENV":
                self.stage.environment |= dict(word.split("=", 1) for word in shlex.split(text))
            case "USER":
                self.stage.user = text
            case "WORKDIR":
                self.stage.folder = text
                self._inside(text).mkdir(parents=True, exist_ok=True)
            case "ENTRYPOINT":
                self.stage.entrypoint = instruction.words
            case "VOLUME" | "CMD":
                pass
            case _:
                raise ValueError(f"line {instruction.line}: {instruction.name} is not supported")

    def _begin(self, text: str) -> None:
        base, _, name = text.partition(" AS ")
        release = _DEBIAN.fullmatch(base)
        if release is None:
            raise ValueError(f"FROM {base}: only debian:RELEASE-slim is supported")
        root = self._work / f"stage{len(self._named)}"
        base_root = self._work / "base"
        if not base_root.exists():
            subprocess.run(
                ["debootstrap", "--variant=minbase", release[1], base_root],
                check=True,
                capture_output=True,
                timeout=_RUN_S_MAX,
            )
        subprocess.run(["cp", "-a", base_root, root], check=True)
        for name_of_file in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name_of_file}", root / "etc" / name_of_file)
        for variable in _CERTIFICATES:
            certificates = Path(os.environ.get(variable, ""))
            if certificates.is_file():
                copy = root / certificates.relative_to("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(certificates, copy)
        self._stage = _Stage(root)
        self._named[name or str(len(self._named))] = self._stage

    def _copy(self, words: Sequence[str]) -> None:
        *sources, target = words
        origin = self._context
        if sources[0].startswith("--from="):
            origin = self._named[sources.pop(0).partition("=")[2]].root
        into = self._inside(target if target.startswith("/") else f"{self.stage.folder}/{target}")
        is_folder = target.endswith("/") or len(sources) > 1
        into.parent.mkdir(parents=True, exist_ok=True)
        for source in sources:
            path = origin / source.lstrip("/")
            copied = f"{path}/." if path.is_dir() else path
            subprocess.run(["cp", "-a", copied, self._target(path, into, is_folder)], check=True)

    @staticmethod
    def _target(path: Path, into: Path, is_folder: bool) -> Path:
        if path.is_dir():
            into.mkdir(parents=True, exist_ok=True)
            return into
        return into / path.name if is_folder else into

    def _inside(self, path: str) -> Path:
        return self.stage.root / path.lstrip("/")

    def run(
        self, command: Sequence[str], *, user: str = "", read_only: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the last stage, as the image's user. With ``read_only``, only /data and /tmp are writable,
        and both are empty.
        """
        stage = self.stage
        uid, _, gid = (user or stage.user).partition(":")
        root = shlex.quote(str(stage.root))
        script = f"mount --bind {root} {root}; mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev"
        if read_only:
            owner = f"uid={uid},gid={gid}"
            script += f"; mount -t tmpfs tmpfs {root}/tmp; mount -t tmpfs -o {owner} tmpfs {root}/data"
            script += f"; mount -o remount,bind,ro {root}"
        in_folder = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', stage.folder]
        chroot = ["chroot", f"--userspec={uid}:{gid}", str(stage.root), *in_folder, *command]
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        done = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
                *("sh", "-ec", f"{script}; exec {shlex.join(chroot)}"),
            ],
            env={**environment, **stage.environment},
            capture_output=True,
            text=True,
            timeout=_RUN_S_MAX,
            check=False,
        )
        if done.returncode != 0:
            output = f"{done.stdout}{done.stderr}"
            raise AssertionError(f"{shlex.join(command)}\nexited with code {done.returncode}:\n{output}")
        return done
