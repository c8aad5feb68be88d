"""The contract of files: real files, files in memory, and faulty files without faults pass the same tests."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from faults.disk.faulty_files import HOME, FaultyFiles
from headrace.files import LockHeld, SystemFiles
from headrace.memory_files import MemoryFiles


@pytest.fixture(params=["system", "faulty", "memory"])
def disk(request, tmp_path):
    """Return an implementation of files and a directory."""
    if request.param == "memory":
        return MemoryFiles(HOME), HOME
    return (SystemFiles(), tmp_path) if request.param == "system" else (FaultyFiles(), HOME)


def test_a_new_file_is_empty_and_keeps_its_path(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    assert (file.size(), file.pread(10, 0), file.path) == (0, b"", home / "a")
    file.close()


def test_written_bytes_read_back_through_any_handle(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    assert file.pwrite([b"one ", bytearray(b"two "), memoryview(b"three")], 0) == 13
    other = files.open(home / "a")
    assert other.pread(100, 0) == b"one two three"
    assert other.pread(3, 4) == b"two"
    assert other.pread(3, 13) == b""
    assert other.pread_nowait(3, 4) == b"two"
    assert other.pread_nowait(100, 8) == b"three"
    assert other.pwrite([b"2"], 4) == 1
    assert file.pread(100, 0) == b"one 2wo three"
    file.close()
    other.close()


def test_a_write_past_the_end_leaves_zeros_between(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    assert file.pwrite([b"x"], 5) == 1
    assert file.pread(10, 0) == b"\0\0\0\0\0x"
    file.close()


def test_a_write_of_nothing_changes_nothing(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    assert file.pwrite([b""], 5) == 0
    assert file.pwrite([b"", b""], 5) == 0
    assert file.size() == 0
    file.close()


def test_truncation_shortens_and_lengthens(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    file.pwrite([b"abcdef"], 0)
    file.truncate(3)
    assert (file.size(), file.pread(10, 0)) == (3, b"abc")
    file.truncate(5)
    assert (file.size(), file.pread(10, 0)) == (5, b"abc\0\0")
    file.sync()
    file.close()


def test_an_open_file_stays_usable_after_its_name_is_removed(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    file.pwrite([b"kept"], 0)
    files.rename(home / "a", home / "b")
    assert file.pread(10, 0) == b"kept"
    files.remove(home / "b")
    assert not files.exists(home / "b")
    file.pwrite([b"still"], 0)
    assert file.pread(10, 0) == b"still"
    file.sync()
    file.close()


def test_a_rename_replaces_a_file(disk):
    files, home = disk
    for name in ("old", "new"):
        file = files.open(home / name, create=True)
        file.pwrite([name.encode()], 0)
        file.close()
    files.rename(home / "new", home / "old")
    assert files.list(home) == ["old"]
    file = files.open(home / "old")
    assert file.pread(10, 0) == b"new"
    file.close()


def test_a_closed_file_rejects_every_operation_except_close(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    file.close()
    file.close()
    operations = [
        lambda: file.pwrite([b"x"], 0),
        lambda: file.pread(1, 0),
        lambda: file.pread_nowait(1, 0),
        lambda: file.truncate(0),
        file.size,
    ]
    for operation in operations:
        with pytest.raises(OSError) as caught:
            operation()
        assert caught.value.errno == errno.EBADF
    with pytest.raises((OSError, ValueError)):  # the standard library raises a ValueError
        file.sync()
    assert file.path == home / "a"


def test_positions_and_sizes_below_zero_are_refused(disk):
    files, home = disk
    file = files.open(home / "a", create=True)
    for operation in (lambda: file.pwrite([b"x"], -1), lambda: file.pread(1, -1), lambda: file.truncate(-1)):
        with pytest.raises(OSError) as caught:
            operation()
        assert caught.value.errno == errno.EINVAL
    file.close()


def test_errors_name_the_path(disk):
    files, home = disk
    with pytest.raises(FileNotFoundError) as caught:
        files.open(home / "missing")
    assert caught.value.filename in (home / "missing", str(home / "missing"))


def test_a_lock_is_exclusive_until_released(disk):
    files, home = disk
    lock = files.lock(home / "lock")
    assert files.exists(home / "lock")
    with pytest.raises(LockHeld):
        files.lock(home / "lock")
    other = files.lock(home / "other")
    lock.release()
    lock.release()
    second_lock = files.lock(home / "lock")
    lock.release()
    with pytest.raises(LockHeld):
        files.lock(home / "lock")
    second_lock.release()
    other.release()


def test_a_lock_belongs_to_the_file_not_to_the_name(disk):
    files, home = disk
    first = files.lock(home / "lock")
    files.remove(home / "lock")
    second = files.lock(home / "lock")
    first.release()
    with pytest.raises(LockHeld):
        files.lock(home / "lock")
    second.release()


names = st.sampled_from("abc")
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/".join(parts))
positions = st.integers(0, 20) | st.sampled_from([511, 512, 513, 4096])
chunks = st.lists(
    st.binary(max_size=12) | st.builds(bytes, st.sampled_from([511, 512, 5000])), min_size=1, max_size=3
)


class SameAsTheSystem(RuleBasedStateMachine):
    """Both kinds of files return the same results and errors for any operation."""

    handles = Bundle("handles")
    locks = Bundle("locks")

    @initialize()
    def start(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.both = [(SystemFiles(), Path(self.temporary.name)), (FaultyFiles(), HOME)]
        self.open = []

    def teardown(self):
        for pair in self.open:
            for files in pair:
                files.release() if hasattr(files, "release") else files.close()
        self.temporary.cleanup()

    def agree(self, operation):
        """Run the operation on both kinds of files. Return both results, or None if both fail."""
        outcomes = []
        for files, home in self.both:
            try:
                outcomes.append((operation(files, home), None))
            except OSError as error:
                outcomes.append((None, errno.errorcode[error.errno]))
            except LockHeld:
                outcomes.append((None, "held"))
        assert outcomes[0][1] == outcomes[1][1]
        return [result for result, _ in outcomes] if outcomes[0][1] is None else None

    def same(self, operation):
        results = self.agree(operation)
        if results is not None:
            assert results[0] == results[1]

    def opened(self, results):
        if results is None:
            return multiple()
        self.open.append(tuple(results))
        return tuple(results)

    def same_of(self, pair, operation):
        self.same(lambda files, _: operation(pair[[files is both for both, _ in self.both].index(True)]))

    @rule(target=handles, path=paths, create=st.booleans())
    def open_file(self, path, create):
        return self.opened(self.agree(lambda files, home: files.open(home / path, create=create)))

    @rule(pair=handles, data=chunks, position=positions)
    def write(self, pair, data, position):
        self.same_of(pair, lambda file: file.pwrite(data, position))

    @rule(pair=handles, size=st.integers(0, 6000), position=positions)
    def read(self, pair, size, position):
        self.same_of(pair, lambda file: file.pread(size, position))

    @rule(pair=handles, size=positions)
    def truncate(self, pair, size):
        self.same_of(pair, lambda file: file.truncate(size))

    @rule(pair=handles)
    def sync(self, pair):
        self.same_of(pair, lambda file: file.sync())

    @rule(pair=handles)
    def size(self, pair):
        self.same_of(pair, lambda file: file.size())

    @rule(pair=consumes(handles))
    def close(self, pair):
        self.same_of(pair, lambda file: file.close())

    @rule(path=paths)
    def make_dir(self, path):
        self.same(lambda files, home: files.make_dir(home / path))

    @rule(path=paths)
    def remove_dir(self, path):
        self.same(lambda files, home: files.remove_dir(home / path))

    @rule(path=paths)
    def sync_dir(self, path):
        self.same(lambda files, home: files.sync_dir(home / path))

    @rule(path=paths)
    def remove(self, path):
        self.same(lambda files, home: files.remove(home / path))

    @rule(old=paths, new=paths)
    def rename(self, old, new):
        self.same(lambda files, home: files.rename(home / old, home / new))

    @rule(path=paths)
    def inspect(self, path):
        self.same(lambda files, home: files.exists(home / path))
        self.same(lambda files, home: files.list(home / path))

    @rule(target=locks, path=paths)
    def lock(self, path):
        return self.opened(self.agree(lambda files, home: files.lock(home / path)))

    @rule(pair=consumes(locks))
    def release(self, pair):
        self.same_of(pair, lambda lock: lock.release())

    @invariant()
    def both_list_the_same(self):
        if hasattr(self, "both"):
            self.same(lambda files, home: files.list(home))


SameAsTheSystem.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestSameAsTheSystem = SameAsTheSystem.TestCase
