"""Files and directories in memory, with POSIX's rules for names, and their state after a power loss.

Each directory has volatile entries and durable entries. The disk has one list of all name changes that are not synced
yet; a rename is one change. A power loss retains some of these changes: either all up to some change, as a journal
does, or an independent selection. A change that depends on a lost change is lost too. If the name of a file is not
durable, the file is lost even if its content was synced. All files in a lost directory are lost as well.
``faulty_content`` simulates the contents of files.

This module is not thread-safe; ``FaultyFiles`` holds a lock.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from faults.disk.faulty_content import FileNode
from headrace.files import LockHeld

__all__ = ["Directory", "Disk", "os_error"]


class Directory:
    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | Directory


class NameEffect(NamedTuple):
    directory: Directory
    name: str
    node: Node | None

    def apply_to(self, entries: dict[str, Node]) -> None:
        if self.node is None:
            entries.pop(self.name, None)
        else:
            entries[self.name] = self.node


class NameChange:
    """One atomic change of one or two names."""

    def __init__(self, *effects: NameEffect) -> None:
        self.effects = effects
        # Two changes depend on each other if they change the same name or name the same node.
        self.marks: set[object] = {(id(effect.directory), effect.name) for effect in effects}
        self.marks |= {id(effect.node) for effect in effects if effect.node is not None}

    def settle(self) -> None:
        for effect in self.effects:
            effect.apply_to(effect.directory.durable)


class Disk:
    """The simulated disk. The next process uses the same disk; after a power loss it uses a new ``Disk``."""

    def __init__(self, rng: random.Random, *, syncs_are_ignored: bool, capacity_bytes: int | None) -> None:
        self.root = Directory()
        self.rng = rng
        self.syncs_are_ignored = syncs_are_ignored
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._name_changes: list[NameChange] = []

    def make_home(self, path: Path) -> None:
        """Create directories that are durable from the start."""
        directory = self.root
        for name in parts_of(path):
            below = Directory()
            directory.entries[name] = directory.durable[name] = below
            directory = below

    # Names.

    def node_at(self, path: Path) -> Node | None:
        if not parts_of(path):
            return self.root
        directory, name = self._parent(path)
        return directory.entries.get(name)

    def file_at(self, path: Path) -> FileNode:
        node = self.node_at(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise os_error(errno.EISDIR, path)
        return node

    def directory_at(self, path: Path) -> Directory:
        node = self.node_at(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise os_error(errno.ENOTDIR, path)
        return node

    def durable_file_at(self, path: Path) -> FileNode | None:
        node: Node | None = self.root
        for name in parts_of(path):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        return node if isinstance(node, FileNode) else None

    def create(self, path: Path) -> FileNode:
        directory, name = self._parent(path)
        if name in directory.entries:
            raise os_error(errno.EEXIST, path)
        node = FileNode()
        self._change_names(NameEffect(directory, name, node))
        return node

    def make_dir(self, path: Path) -> None:
        node = self.node_at(path)
        if isinstance(node, FileNode):
            raise os_error(errno.EEXIST, path)
        if node is None:
            self._change_names(NameEffect(*self._parent(path), Directory()))

    def rename(self, old: Path, new: Path) -> None:
        old_parent, new_parent = self._parent(old), self._parent(new)
        node = self.node_at(old)
        if node is None:
            raise os_error(errno.ENOENT, old)
        replaced = self.node_at(new)
        if replaced is node:
            return
        if parts_of(new)[: len(parts_of(old))] == parts_of(old):
            raise os_error(errno.EINVAL, new)
        if parts_of(old)[: len(parts_of(new))] == parts_of(new):
            raise os_error(errno.ENOTEMPTY, new)
        if isinstance(node, Directory):
            if isinstance(replaced, FileNode):
                raise os_error(errno.ENOTDIR, new)
            if replaced is not None and replaced.entries:
                raise os_error(errno.ENOTEMPTY, new)
        elif isinstance(replaced, Directory):
            raise os_error(errno.EISDIR, new)
        self._change_names(NameEffect(*old_parent, None), NameEffect(*new_parent, node))
        if isinstance(replaced, FileNode):
            self._unname(replaced)

    def remove(self, path: Path) -> None:
        node = self.file_at(path)
        self._change_names(NameEffect(*self._parent(path), None))
        self._unname(node)

    def remove_dir(self, path: Path) -> None:
        if self.directory_at(path).entries:
            raise os_error(errno.ENOTEMPTY, path)
        self._change_names(NameEffect(*self._parent(path), None))

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable, and all name changes on which they depend."""
        directory = self.directory_at(path)
        if self.syncs_are_ignored:
            return
        marks: set[object] = set()
        settled: list[NameChange] = []
        rest: list[NameChange] = []
        for change in reversed(self._name_changes):
            if marks & change.marks or any(effect.directory is directory for effect in change.effects):
                marks |= change.marks
                settled.append(change)
            else:
                rest.append(change)
        for change in reversed(settled):
            change.settle()
        self._name_changes = rest[::-1]

    def lock(self, path: Path, holder: object) -> FileNode:
        node = self.create(path) if self.node_at(path) is None else self.file_at(path)
        if node.lock_holder is not None:
            raise LockHeld(str(path))
        node.lock_holder = holder
        return node

    def _parent(self, path: Path) -> tuple[Directory, str]:
        parts = parts_of(path)
        if not parts:
            raise os_error(errno.EBUSY, path)
        directory = self.root
        for part in parts[:-1]:
            node = directory.entries.get(part)
            if node is None:
                raise os_error(errno.ENOENT, path)
            if not isinstance(node, Directory):
                raise os_error(errno.ENOTDIR, path)
            directory = node
        return directory, parts[-1]

    def _change_names(self, *effects: NameEffect) -> None:
        for effect in effects:
            effect.apply_to(effect.directory.entries)
        self._name_changes.append(NameChange(*effects))

    # Contents and capacity.

    def write(self, path: Path, node: FileNode, data: bytes, position: int) -> int:
        """Write the bytes that fit on the disk. Like a real disk, a nearly full disk returns a short write first."""
        size = len(node.content)
        written = len(data)
        if self.capacity_bytes is not None and data:
            written = min(written, size + max(0, self.capacity_bytes - self.used_bytes) - position)
            if written <= 0:
                raise os_error(errno.ENOSPC, path)
        node.write(data[:written], position)
        self.used_bytes += len(node.content) - size
        return written

    def truncate(self, node: FileNode, size: int) -> None:
        self.used_bytes += size - len(node.content)
        node.truncate(size)

    def sync(self, node: FileNode, up_to: int) -> None:
        if not self.syncs_are_ignored:
            node.settle(up_to)

    def close(self, node: FileNode) -> None:
        node.handles -= 1
        self._free(node)

    def _unname(self, node: FileNode) -> None:
        node.named = False
        self._free(node)

    def _free(self, node: FileNode) -> None:
        if not node.named and node.handles == 0:
            self.used_bytes -= len(node.content)

    # Ends.

    def after_process_end(self) -> Disk:
        """Return this disk without locks and without open files that have no name."""
        self.used_bytes = 0
        for node in _files_below(self.root):
            node.handles = 0
            node.lock_holder = None
            self.used_bytes += len(node.content)
        return self

    def after_power_loss(self) -> Disk:
        survivor = Disk(
            self.rng, syncs_are_ignored=self.syncs_are_ignored, capacity_bytes=self.capacity_bytes
        )
        names = _Names()
        for change in self._surviving_names():
            names.take(change)
        survivor.root = _copy_of(self.root, names, self.rng)
        return survivor.after_process_end()

    def _surviving_names(self) -> Iterator[NameChange]:
        if self.rng.random() < 0.5:
            yield from self._name_changes[: self.rng.randrange(len(self._name_changes) + 1)]
            return
        kept_share = self.rng.choice([0.2, 0.5, 0.8])
        lost_nodes: set[object] = set()
        for change in self._name_changes:
            if lost_nodes & change.marks or self.rng.random() >= kept_share:
                lost_nodes |= change.marks
            else:
                yield change


class _Names:
    """Durable entries with some additional changes. The entries of the disk are not modified."""

    def __init__(self) -> None:
        self._changed: dict[int, dict[str, Node]] = {}

    def take(self, change: NameChange) -> None:
        for effect in change.effects:
            effect.apply_to(self._changed.setdefault(id(effect.directory), dict(effect.directory.durable)))

    def of(self, directory: Directory) -> dict[str, Node]:
        return self._changed.get(id(directory), directory.durable)


def _copy_of(directory: Directory, names: _Names, rng: random.Random) -> Directory:
    copy = Directory()
    for name, node in sorted(names.of(directory).items()):
        if isinstance(node, Directory):
            copy.entries[name] = _copy_of(node, names, rng)
        else:
            copy.entries[name] = FileNode(node.after_power_loss(rng))
    copy.durable = dict(copy.entries)
    return copy


def _files_below(directory: Directory) -> Iterator[FileNode]:
    for node in directory.entries.values():
        if isinstance(node, FileNode):
            yield node
        else:
            yield from _files_below(node)


def parts_of(path: Path) -> tuple[str, ...]:
    """Return the names in the path from the root."""
    parts = path.parts[1:] if path.is_absolute() else path.parts
    if ".." in parts:
        raise ValueError(f"the path {path} contains ..: use a path without ..")
    return parts


def os_error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
