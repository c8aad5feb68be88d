"""The full-text store: words, files, faults and proofs."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tantivy

from faults.stores.search import SearchFixture, read_search_index
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.model.kinds import Field, Scalar
from headrace.model.store import Search
from headrace.stores import catalog
from headrace.stores.errors import (
    QueryFailed,
    SchemaRefused,
    StoreDamaged,
    StoreForeign,
    StoreReplaced,
    StoreUnusable,
)
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.rows import Row
from headrace.stores.search.reader import SearchReader
from headrace.stores.search.writer import SearchWriter
from headrace.stores.writer import Changes, Fence, Part
from tests.contract.store_driver import StoreDriver, changes
from tests.contract.store_writer import SCHEMA, position_of, rows_after
from tests.views.folders import (
    Shop,
    apply_batches,
    check_full_disk,
    check_killed_writers,
    check_zombie_is_rejected,
    remove_folder,
)

Fresh = Callable[[str], str]
BOOKS = ViewSchema(
    (
        Field("id", Scalar("int"), False),
        Field("title", Scalar("text"), True),
        Field("by", Scalar("text"), True),
    ),
    ("id",),
)
_FILES_MAX = 200


@pytest.fixture
def backend(tmp_path: Path) -> SearchFixture:
    return SearchFixture(tmp_path)


def book_index(path: Path, *books: Row, fields: tuple[str, ...] = ()) -> SearchWriter:
    store = SearchWriter(path, "books", fields)
    fence = Fence(store.claim("a test", 1), 1)
    store.begin(BOOKS, position_of(NO_BATCH), "", fence)
    changes = Changes(BOOKS)
    for book in books:
        changes.put(book)
    store.apply(Part.BUILDING, changes, position_of(NO_BATCH), position_of(0), fence)
    store.swap(fence)
    return store


def matching(path: Path, words: str, limit: int = 10) -> list[Any]:
    with (
        contextlib.closing(SearchReader(path)) as reader,
        reader.scan("books", 10, words) as (_, rows),
    ):
        return [row[0] for row in itertools.islice(rows, limit)]


# Words


def test_rows_match_by_words_best_first(tmp_path: Path) -> None:
    books: list[Row] = [
        (1, "The Café at the End", "Zoë Blue"),
        (2, "Coffee, coffee, COFFEE", "Ann Reed"),
        (3, "A history of coffee and of much else that people drink in the morning", "Ann Reed"),
        (4, None, "nobody"),
    ]
    with contextlib.closing(book_index(tmp_path, *books)):
        assert matching(tmp_path, "coffee") == [2, 3]
        assert matching(tmp_path, "cafe") == [1]
        assert matching(tmp_path, "CAFÉ zoe") == [1]
        assert matching(tmp_path, "+coffee -history") == [2]
        assert matching(tmp_path, '"history of coffee"') == [3]
        assert matching(tmp_path, "by:reed", 1) in ([2], [3])
        assert matching(tmp_path, "title:reed") == []
        assert matching(tmp_path, "standing") == []


def test_the_error_of_an_invalid_query_explains_the_syntax(tmp_path: Path) -> None:
    with contextlib.closing(book_index(tmp_path, (1, "a", "b"))):
        # Opening the last of these files would end the process.
        for words in ('"unfinished', "nowhere:word", "title:[", "AND OR", "\udcff", "(" * 50_000):
            with pytest.raises(QueryFailed) as result:
                matching(tmp_path, words)
            assert "title" in result.value.hint


def test_only_named_columns_are_searched_and_naming_others_rebuilds_the_index(tmp_path: Path) -> None:
    books: tuple[Row, ...] = ((1, "red", "blue"),)
    book_index(tmp_path, *books, fields=("title",)).close()
    assert (matching(tmp_path, "red"), matching(tmp_path, "blue")) == ([1], [])
    with contextlib.closing(SearchWriter(tmp_path, "books", ("by",))) as store:
        store.claim("a test", 1)
        serving = store.state(Part.SERVING)
        assert serving is not None
        # So the follower rebuilds it.
        assert serving.rebuild_requests < store.rebuild_requests()
    book_index(tmp_path, *books, fields=("by",)).close()
    assert (matching(tmp_path, "red"), matching(tmp_path, "blue")) == ([], [1])
    with pytest.raises(SchemaRefused, match="'price'"):
        book_index(tmp_path, fields=("price",))


def test_keys_of_any_length_are_one_row_each(backend: SearchFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        fence = apply_batches(store, 0)
        long = "x" * 100_000
        for number, key in enumerate((long, long + "y", long)):
            changes = Changes(SCHEMA)
            changes.put((key, number))
            store.apply(Part.SERVING, changes, position_of(number - 1), position_of(number), fence)
        assert sorted(store.rows()) == [(long, 2), (long + "y", 1)]


def test_positive_and_negative_infinity_are_two_keys(tmp_path: Path) -> None:
    view_schema = ViewSchema((Field("at", Scalar("float"), False), Field("n", Scalar("int"), True)), ("at",))
    with contextlib.closing(SearchWriter(tmp_path, "sales")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        driver.apply(changes(view_schema, (float("inf"), 1), (float("-inf"), 2), ("NaN", 3), (0.5, 4)))
        assert list(store.rows()) == [(float("-inf"), 2), (0.5, 4), (float("inf"), 1), ("NaN", 3)]


def test_columns_are_searched_whatever_their_names(tmp_path: Path) -> None:
    names = ["id", "-a", "_-a", "_", "__", "_headrace_key", "__headrace_key", "a b", "a.b", 'a"b']
    view_schema = ViewSchema(tuple(Field(name, Scalar("text"), True) for name in names), ("id",))
    with contextlib.closing(SearchWriter(tmp_path, "books")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        driver.apply(
            changes(view_schema, *(tuple(f"w{row}x{at}" for at in range(len(names))) for row in range(2)))
        )
        assert [matching(tmp_path, f"w1x{at}") for at in range(len(names))] == [["w1x0"]] * len(names)


def test_a_thousand_columns_and_a_text_of_megabytes_are_one_row(tmp_path: Path) -> None:
    view_schema = ViewSchema(
        tuple(Field(f"c{number}", Scalar("text"), True) for number in range(1_000)), ("c0",)
    )
    row: Row = ("key", "needle " + "hay " * 1_000_000, *("",) * 998)
    with contextlib.closing(SearchWriter(tmp_path, "books")) as store:
        driver = StoreDriver(store)
        driver.serve(view_schema)
        driver.apply(changes(view_schema, row))
        assert list(store.rows()) == [row]
        assert matching(tmp_path, "c1:needle") == ["key"]


def test_all_rows_of_a_large_index_are_read(tmp_path: Path) -> None:
    book_index(tmp_path, *((number, f"book {number}", None) for number in range(21_000))).close()
    with contextlib.closing(SearchReader(tmp_path)) as reader:
        assert reader.count("books") == 21_000
        with reader.scan("books", 60) as (names, rows):
            assert names == ["id", "title", "by"]
            assert {row[0] for row in rows} == set(range(21_000))


# Files


def test_many_small_batches_leave_few_files(backend: SearchFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 300)
        files = [path for path in backend.path.rglob("*") if path.is_file()]
        assert len(files) < _FILES_MAX
        assert sum(path.stat().st_size for path in files) < 1 << 20
    assert backend.read() == (299, rows_after(299))


def test_foreign_content_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "mine.txt").write_text("mine")
    with pytest.raises(StoreForeign):
        SearchWriter(tmp_path, "sales")
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable):
        SearchWriter(tmp_path / "file", "sales")
    assert [path.name for path in (tmp_path / "sales").iterdir()] == ["mine.txt"]


def test_a_damaged_index_is_reported_and_one_that_lacks_files_is_rebuilt(backend: SearchFixture) -> None:
    with contextlib.closing(backend.open()) as store:
        apply_batches(store, 3)
    (stored,) = sorted(backend.path.rglob("*.store"))[:1]
    stored.write_bytes(b"\xa5" * stored.stat().st_size)
    with contextlib.closing(backend.open()) as store, pytest.raises(StoreDamaged) as result:
        store.claim("a test", 1)
    assert "rebuilds the view" in result.value.hint
    for path in backend.path.rglob("*.store"):
        path.unlink()
    with contextlib.closing(backend.open()) as store:
        store.claim("a test", 1)
        assert store.state(Part.SERVING) is None


def test_a_damaged_index_does_not_block_the_others(tmp_path: Path) -> None:
    book_index(tmp_path, (1, "red", "blue")).close()
    (tmp_path / "other" / "catalog").mkdir(parents=True)
    (tmp_path / "other" / "catalog" / f"{1:020}.json").write_text("{")
    with contextlib.closing(SearchReader(tmp_path)) as reader:
        assert [(part.view, part.part) for part in reader.parts("books")] == [("books", Part.SERVING)]
        with pytest.raises(StoreDamaged):
            reader.views()
        remove_folder(tmp_path)
        with pytest.raises(StoreReplaced):
            reader.views()


def test_a_follower_waits_for_a_full_disk(backend: SearchFixture) -> None:
    check_full_disk(backend)


def test_a_commit_during_the_claim_of_another_follower_stays_visible(
    backend: SearchFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = catalog.write_synced
    with contextlib.closing(backend.open()) as store, contextlib.closing(backend.open()) as other:
        driver = StoreDriver(store)
        driver.serve()

        def write_then_commit(path: Path, data: bytes) -> None:
            write(path, data)
            if driver.position.batch < 0:
                driver.apply(changes(SCHEMA, ("a", 1)))

        monkeypatch.setattr(catalog, "write_synced", write_then_commit)
        other.claim("a successor", 1)
        assert backend.read() == (0, [("a", 1)])


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_that_was_replaced_during_a_batch_cannot_write(backend: SearchFixture, seed: int) -> None:
    check_zombie_is_rejected(backend, seed)


def test_repeated_kills_leave_a_bounded_number_of_files(backend: SearchFixture) -> None:
    check_killed_writers(backend, 5, seed=11)
    assert len([path for path in backend.path.rglob("*") if path.is_file()]) < _FILES_MAX
    assert len([path for path in (backend.path / "sales").iterdir() if path.is_dir()]) <= 4


# Followed and proven


def shop(cluster: Cluster, home: Path, name: str) -> Shop:
    def read_rows(view: str) -> dict[str, Any] | None:
        found = read_search_index(home / "shop.search", view)
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    return Shop(cluster, home, name, Search(), read_rows)


def test_a_folder_removed_while_no_records_arrive_is_rebuilt(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"), ("b", 2, "two"), ("a", None, ""))
    with created.following() as follower:
        created.expect({"b": ("b", 2, "two")})
        remove_folder(tmp_path / "shop.search")
        until(lambda: follower.status.rebuilds == 2, "the rebuild", timeout_s=240)
        created.expect({"b": ("b", 2, "two")})


def test_a_restored_older_copy_catches_up(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"))
    with created.following():
        created.expect({"a": ("a", 1, "one")})
    shutil.copytree(tmp_path / "shop.search", tmp_path / "kept")
    with created.following() as follower:
        created.write(("b", 2, "two"))
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        (tmp_path / "shop.search").rename(tmp_path / "newer")
        (tmp_path / "kept").rename(tmp_path / "shop.search")
        created.write(("c", 3, "three"))
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
        assert follower.status.rebuilds == 0


def replace_document(
    home: Path, view: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Replace the stored document of row ``b``, or of the position, by the result of ``change``."""
    catalog = sorted((home / "shop.search" / view / "catalog").glob("*.json"))[-1]
    index = tantivy.Index.open(str(catalog.parent.parent / json.loads(catalog.read_text())["serving"]))
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).build()
    index.register_tokenizer("headrace_words", words)
    searcher, writer = index.searcher(), index.writer(15_000_000, 1)
    for _, address in searcher.search(tantivy.Query.all_query(), 100).hits:
        result = json.loads(searcher.doc(address).get_first("_headrace_row"))
        key = "standing" if "position" in result else f'=["{result["order"]}"]'
        created = change(dict(result))
        if created != result:
            writer.delete_documents_by_term("_headrace_key", key)
            if created is not None:
                document = tantivy.Document()
                document.add_text("_headrace_key", key)
                document.add_bytes("_headrace_row", json.dumps(created).encode())
                if key != "standing":
                    document.add_unsigned("_headrace_bucket", 1)
                writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


def test_verify_names_rows_changed_in_an_index(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    created = shop(cluster, tmp_path, fresh("orders"))
    created.write(("a", 1, "one"), ("b", 2, "two"), ("c", 3, "three"))
    with created.following():
        created.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
    report = created.verify()
    assert (report.verdict, report.found_rows, report.behind) == ("proven", 3, 0), report.lines()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "shop.search", kept)

    def restore() -> None:
        shutil.rmtree(tmp_path / "shop.search")
        shutil.copytree(kept, tmp_path / "shop.search")

    replace_document(
        tmp_path, created.view.name, lambda row: {**row, "note": "2"} if row.get("order") == "b" else row
    )
    (difference,) = created.verify().differences
    assert (difference.kind, difference.key, difference.columns) == ("different", {"order": "b"}, ["note"])
    restore()
    replace_document(tmp_path, created.view.name, lambda row: None if row.get("order") == "b" else row)
    (difference,) = created.verify().differences
    assert (difference.kind, difference.key) == ("missing", {"order": "b"})
    restore()
    replace_document(
        tmp_path, created.view.name, lambda row: {**row, "order": "z"} if row.get("order") == "b" else row
    )
    assert {(difference.kind, difference.key["order"]) for difference in created.verify().differences} == {
        ("missing", "b"),
        ("extra", "z"),
    }
    restore()
    moved = {"position": {"offsets": {"0": 99}}}
    replace_document(
        tmp_path,
        created.view.name,
        lambda row: (
            {**row, "position": {**row["position"], **moved["position"]}} if "position" in row else row
        ),
    )
    assert [finding.kind for finding in created.verify().findings] == ["position"]
