"""Creates files on a simulated disk, and counts its possible contents after a power loss."""

from __future__ import annotations

from collections import Counter

from faults.disk.faulty_files import HOME, FaultyFiles

SEEDS = range(300)


def create_file(files, name, data=b"", *, durable=True):
    file = files.open(HOME / name, create=True)
    if data:
        file.pwrite([data], 0)
    if durable:
        file.sync()
        files.sync_dir(HOME)
    return file


def outcomes(prepare, read, seeds=SEEDS):
    """How often ``read`` returned each result after a power loss."""
    seen = Counter()
    for seed in seeds:
        files = FaultyFiles(seed)
        prepare(files)
        seen[read(files.crash())] += 1
    return seen


def content(name):
    return lambda files: files.content(HOME / name) if files.exists(HOME / name) else None
