from __future__ import annotations

import itertools

from faults.disk.faulty_files import HOME
from tests.unit.disk.disk_contents import SEEDS, content, create_file, outcomes

# Power loss and data.


def test_synced_bytes_under_a_synced_name_always_survive():
    def prepare(files):
        create_file(files, "a", b"x" * 2000)

    assert outcomes(prepare, content("a")) == {b"x" * 2000: len(SEEDS)}


def test_unsynced_bytes_may_survive_or_be_lost():
    def prepare(files):
        create_file(files, "a", b"old").pwrite([b"new"], 3)

    seen = outcomes(prepare, content("a"))
    assert {b"old", b"oldnew"} <= set(seen)
    assert all(data.startswith(b"old") for data in seen)


def test_one_write_is_torn_at_any_byte_and_at_sectors():
    def prepare(files):
        create_file(files, "a").pwrite([b"x" * 2000], 0)

    def kept(files):
        data = files.content(HOME / "a")
        return len(data), data.count(b"x")

    seen = outcomes(prepare, kept)
    lengths = {length for length, _ in seen}
    assert {0, 512, 1024, 1536, 2000} <= lengths
    assert any(length % 512 for length in lengths - {2000})
    assert any(count < length for length, count in seen), (
        "holes: the file has its size, but a sector is missing"
    )


def test_unsynced_writes_are_lost_independently_of_their_order():
    def prepare(files):
        file = create_file(files, "a")
        for index, letter in enumerate([b"a", b"b", b"c"]):
            file.pwrite([letter * 512], index * 512)

    def letters(files):
        data = files.content(HOME / "a")
        return bytes(data[start] for start in range(0, len(data), 512))

    seen = set(outcomes(prepare, letters))
    assert {b"", b"a", b"ab", b"abc", b"a\0c", b"\0bc", b"\0\0c", b"\0\0\0"} <= seen


def test_overwritten_bytes_show_the_old_the_new_or_a_mix_by_sector():
    def prepare(files):
        file = create_file(files, "a", b"1" * 1024)
        file.pwrite([b"2" * 1024], 0)
        file.pwrite([b"3" * 512], 0)

    seen = set(outcomes(prepare, content("a")))
    halves = {(data[:512], data[512:]) for data in seen}
    for first, second in itertools.product([b"1", b"2", b"3"], [b"1", b"2"]):
        assert (first * 512, second * 512) in halves


def test_a_write_after_a_sync_changes_nothing_before_it():
    def prepare(files):
        file = create_file(files, "a", b"s" * 700)
        file.pwrite([b"n" * 700], 700)

    for data in outcomes(prepare, content("a")):
        assert data[:700] == b"s" * 700


def test_an_unsynced_truncation_may_be_lost_but_not_a_synced_truncation():
    def shorten(files):
        create_file(files, "a", b"x" * 1000).truncate(10)

    assert set(outcomes(shorten, content("a"))) == {b"x" * 10, b"x" * 1000}

    def shorten_and_sync(files):
        file = create_file(files, "a", b"x" * 1000)
        file.truncate(10)
        file.sync()

    assert set(outcomes(shorten_and_sync, content("a"))) == {b"x" * 10}


def test_writes_after_a_lost_truncation_are_lost():
    def prepare(files):
        file = create_file(files, "a", b"x" * 1000)
        file.truncate(0)
        file.pwrite([b"y" * 600], 0)

    for data in outcomes(prepare, content("a")):
        assert b"x" not in data or data == b"x" * 1000


# Power loss and names.


def test_a_file_without_a_synced_name_may_be_lost_although_its_bytes_were_synced():
    def prepare(files):
        create_file(files, "a", b"data", durable=False).sync()

    assert set(outcomes(prepare, content("a"))) == {None, b"data"}


def test_a_name_may_survive_although_the_bytes_are_lost():
    def prepare(files):
        create_file(files, "a", b"data", durable=False)
        files.sync_dir(HOME)

    assert {b"", b"data"} <= set(outcomes(prepare, content("a")))


def test_a_rename_survives_completely_or_not_at_all():
    def prepare(files):
        create_file(files, "a", b"old")
        create_file(files, "b", b"new")
        files.rename(HOME / "b", HOME / "a")

    def both(files):
        return content("a")(files), content("b")(files)

    assert set(outcomes(prepare, both)) == {(b"old", b"new"), (b"new", None)}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, both)) == {(b"new", None)}


def test_a_rename_of_an_unsynced_name_never_leaves_both_names():
    def prepare(files):
        create_file(files, "a", b"old")
        create_file(files, "b", b"new", durable=False).sync()
        files.rename(HOME / "b", HOME / "a")

    def both(files):
        return content("a")(files), content("b")(files)

    assert set(outcomes(prepare, both)) == {(b"old", None), (b"old", b"new"), (b"new", None)}


def test_a_removed_file_may_reappear_until_the_directory_is_synced():
    def prepare(files):
        create_file(files, "a", b"data")
        files.remove(HOME / "a")

    assert set(outcomes(prepare, content("a"))) == {None, b"data"}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, content("a"))) == {None}


def test_a_recreated_name_is_the_old_file_or_the_new_one():
    def prepare(files):
        create_file(files, "a", b"old")
        files.remove(HOME / "a")
        create_file(files, "a", b"new", durable=False).sync()

    assert set(outcomes(prepare, content("a"))) == {b"old", None, b"new"}


def test_changes_of_names_are_lost_independently():
    def prepare(files):
        for name in "abc":
            create_file(files, name, durable=False)

    seen = {"".join(names) for names in outcomes(prepare, lambda files: tuple(files.list(HOME)))}
    assert seen == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_lost_directory_loses_everything_in_it():
    def prepare(files):
        files.make_dir(HOME / "d")
        files.open(HOME / "d" / "a", create=True).sync()
        files.sync_dir(HOME / "d")

    def listing(files):
        return tuple(files.list(HOME / "d")) if files.exists(HOME / "d") else None

    assert set(outcomes(prepare, listing)) == {None, ("a",)}

    def prepare_and_sync(files):
        prepare(files)
        files.sync_dir(HOME)

    assert set(outcomes(prepare_and_sync, listing)) == {("a",)}


def test_a_move_between_directories_is_one_atomic_change():
    def prepare(files):
        for name in ("from", "to"):
            files.make_dir(HOME / name)
        files.sync_dir(HOME)
        files.open(HOME / "from" / "a", create=True)
        files.sync_dir(HOME / "from")
        files.rename(HOME / "from" / "a", HOME / "to" / "a")

    def listing(files):
        return len(files.list(HOME / "from")), len(files.list(HOME / "to"))

    assert set(outcomes(prepare, listing)) == {(1, 0), (0, 1)}

    for synced in ("from", "to"):

        def prepare_and_sync(files, synced=synced):
            prepare(files)
            files.sync_dir(HOME / synced)

        assert set(outcomes(prepare_and_sync, listing)) == {(0, 1)}
