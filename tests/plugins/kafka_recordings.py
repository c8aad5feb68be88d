"""Recorded results of Apache Kafka, so that ``make test`` compares our broker with Kafka without starting it.

A case that runs stock clients against Apache Kafka, and nothing of ours, ends the same way as long as its code and
Kafka's version stay the same. Its recording has

    case      name of the test with its parameters
    code      digest of the test: its function, and all that this uses in its module and in other modules of ``tests``,
              without the names of variables, functions and tests
    answers   Kafka's answers, if the test compares ours with them; absent if the test asserts them itself

``tests/recordings/kafka-VERSION/`` has a file per test file, a line per case. A case without a recording of its present
code fails; ``make record-kafka`` records all of them.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.jars import pinned

__all__ = [
    "RECORD",
    "NoRecording",
    "Recording",
    "Recordings",
    "as_json",
    "code_digest",
    "forget_sources",
    "kafka_version",
]

RECORD = "make record-kafka"
_MISSING = object()


class NoRecording(AssertionError):
    pass


@cache
def kafka_version() -> str:
    """The version of the server; other versions of the client are pinned as well."""
    (version,) = {
        jar.revision for jar in pinned() if jar.group == "kafka-server" and jar.name.startswith("kafka_")
    }
    return version


def as_json(answers: Any) -> Any:
    """The answers as they are read back from a recording: tuples are lists, keys are strings."""
    return json.loads(json.dumps(answers))


@dataclass(frozen=True)
class Recording:
    code: str
    answers: Any = _MISSING

    @property
    def has_answers(self) -> bool:
        return self.answers is not _MISSING


class Recordings:
    """The recordings of one version of Kafka, read file by file as they are needed."""

    def __init__(self, root: Path, version: str) -> None:
        self._root = root
        self._home = root / "tests" / "recordings" / f"kafka-{version}"
        self._files: dict[str, dict[str, Recording]] = {}

    def exist(self) -> bool:
        return self._home.exists()

    def require(self, nodeid: str, code: str) -> Recording:
        file, case = _split(nodeid)
        recording = self._file(file).get(case) or self._renamed(file, case, code)
        if recording is None:
            raise NoRecording(f"{self._home.name} has no recording of {nodeid}. Record it: {RECORD}")
        if recording.code != code:
            raise NoRecording(
                f"{nodeid} changed since {self._home.name} was recorded. Record it again: {RECORD}"
            )
        return recording

    def _renamed(self, file: str, case: str, code: str) -> Recording | None:
        """The recording of the same code and parameters under another name of the test."""
        for name, recording in self._file(file).items():
            if recording.code == code and name.partition("[")[2] == case.partition("[")[2]:
                return recording
        return None

    def put(self, nodeid: str, recording: Recording) -> None:
        file, case = _split(nodeid)
        self._file(file)[case] = recording

    def drop(self, nodeid: str) -> None:
        file, case = _split(nodeid)
        self._file(file).pop(case, None)

    def keep_only(self, file: str, cases: set[str]) -> None:
        """Drop the recordings of cases that the test file no longer has."""
        self._files[file] = {case: entry for case, entry in self._file(file).items() if case in cases}

    def write(self) -> None:
        for file, recordings in self._files.items():
            path = self._path(file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(_lines(recordings)), encoding="utf-8")

    def _file(self, file: str) -> dict[str, Recording]:
        if file not in self._files:
            path = self._path(file)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            fields = [json.loads(line) for line in lines]
            self._files[file] = {entry.pop("case"): Recording(**entry) for entry in fields}
        return self._files[file]

    def _path(self, file: str) -> Path:
        return self._home / Path(file).relative_to("tests").with_suffix(".jsonl")


def _split(nodeid: str) -> tuple[str, str]:
    file, _, case = nodeid.partition("::")
    return file, case


def _lines(recordings: dict[str, Recording]) -> Iterator[str]:
    for case, recording in sorted(recordings.items()):
        fields = {"case": case, "code": recording.code}
        if recording.has_answers:
            fields["answers"] = recording.answers
        yield json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


# The code of a test


@cache
def code_digest(root: Path, file: str, function: str) -> str:
    """A digest of the function and of what it uses. Comments, docstrings, annotations, layout and the names of
    variables and functions do not count; the names of arguments do, because they select fixtures.
    """
    digest = hashlib.sha256()
    waiting, seen = [(file, function)], {(file, function)}
    while waiting:
        module, name = waiting.pop()
        digest.update(_definition(root, module, name).encode())
        for used in _uses(root, module, name):
            if used not in seen:
                seen.add(used)
                waiting.append(used)
    return digest.hexdigest()[:16]


def forget_sources() -> None:
    """Read all files again: a run reads each of them once."""
    for read in (code_digest, _module, _definition, _uses):
        read.cache_clear()


@dataclass(frozen=True)
class _Module:
    definitions: dict[str, list[ast.stmt]]
    """The top-level statements that bind each name."""
    imported: dict[str, tuple[str, str]]
    """For names from other modules of ``tests``: file and name there."""


@cache
def _module(root: Path, file: str) -> _Module:
    definitions: dict[str, list[ast.stmt]] = {}
    imported: dict[str, tuple[str, str]] = {}
    for statement in ast.parse((root / file).read_text(encoding="utf-8")).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                definitions.setdefault(name, []).append(statement)
            case ast.ImportFrom(module=str(source), names=names) if source.startswith("tests."):
                path = source.replace(".", "/")
                path = f"{path}/__init__.py" if (root / path).is_dir() else f"{path}.py"
                imported |= {alias.asname or alias.name: (path, alias.name) for alias in names}
            case _:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        definitions.setdefault(node.id, []).append(statement)
    return _Module(definitions, imported)


@cache
def _definition(root: Path, file: str, name: str) -> str:
    module = _module(root, file)
    ours = {*module.definitions, *module.imported}
    return "\n".join(
        ast.unparse(_Anonymous(statement, ours).visit(ast.parse(ast.unparse(statement))))
        for statement in module.definitions.get(name, ())
    )


@cache
def _uses(root: Path, file: str, name: str) -> tuple[tuple[str, str], ...]:
    """Names of this module and of other modules of ``tests`` in the definition, in order; fixtures are arguments."""
    module = _module(root, file)
    names: dict[str, None] = {}
    for statement in module.definitions.get(name, ()):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                names[node.id] = None
            elif isinstance(node, ast.arg):
                names[node.arg] = None
    return tuple(
        (file, used) if used in module.definitions else module.imported[used]
        for used in names
        if used in module.definitions or used in module.imported
    )


class _Anonymous(ast.NodeTransformer):
    """Numbers instead of the names of variables and of ``ours``, and no docstrings and annotations."""

    def __init__(self, statement: ast.stmt, ours: set[str]) -> None:
        arguments = {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}
        variables = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self._names = (variables | ours) - arguments
        self._numbers: dict[str, int] = {}

    def _number(self, name: str) -> str:
        return f"name_{self._numbers.setdefault(name, len(self._numbers))}" if name in self._names else name

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._number(node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg(node.arg), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns, node.body = self._number(node.name), None, _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name, node.body = self._number(node.name), _without_docstring(node.body)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assigned = ast.Assign([node.target], node.value) if node.value else ast.Expr(node.target)
        return self.generic_visit(ast.copy_location(assigned, node))


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    kept = [
        statement
        for statement in body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    return kept or [ast.Pass()]
