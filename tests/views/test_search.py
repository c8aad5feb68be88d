"""What is a full-text index's own about its store: words, files, troubles, and proofs of it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tantivy

from headrace.client.cluster import Cluster
from headrace.model.kinds import Field, Plain
from headrace.model.store import Search
from headrace.views import catalog
from headrace.views.changes import Changes
from headrace.views.errors import (
    QueryFailed,
    ShapeRefused,
    StoreDamaged,
    StoreForeign,
    StoreReplaced,
    StoreUnusable,
)
from headrace.views.position import NO_BATCH, Shape
from headrace.views.rows import Row
from headrace.views.search.reading import SearchReader
from headrace.views.search.store import SearchStore
from headrace.views.store import Fence, Part
from tests.contract.see_search import SeeSearch, look_at_search
from tests.contract.store_hand import Hand, changes
from tests.contract.store_writer import SHAPE, position_of, rows_after
from tests.support.waiting import until
from tests.views.folders import Shop, a_writer_is_killed, a_zombie_wakes, grown, taken_away, without_room

Fresh = Callable[[str], str]
BOOKS = Shape(
    (Field("id", Plain("int"), False), Field("title", Plain("text"), True), Field("by", Plain("text"), True)),
    ("id",),
)
_FILES_MAX = 200


@pytest.fixture
def see(tmp_path: Path) -> SeeSearch:
    return SeeSearch(tmp_path)


def shelved(path: Path, *books: Row, fields: tuple[str, ...] = ()) -> SearchStore:
    store = SearchStore(path, "books", fields)
    fence = Fence(store.take("a test", 1), 1)
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
        reader.matching("books", words, limit, 10) as (_, rows),
    ):
        return [row[0] for row in rows]


# Words


def test_rows_are_found_by_their_words_the_best_first(tmp_path: Path) -> None:
    books: list[Row] = [
        (1, "The Café at the End", "Zoë Blue"),
        (2, "Coffee, coffee, COFFEE", "Ann Reed"),
        (3, "A history of coffee and of much else that people drink in the morning", "Ann Reed"),
        (4, None, "nobody"),
    ]
    with contextlib.closing(shelved(tmp_path, *books)):
        assert matching(tmp_path, "coffee") == [2, 3]
        assert matching(tmp_path, "cafe") == [1]
        assert matching(tmp_path, "CAFÉ zoe") == [1]
        assert matching(tmp_path, "+coffee -history") == [2]
        assert matching(tmp_path, '"history of coffee"') == [3]
        assert matching(tmp_path, "by:reed", 1) in ([2], [3])
        assert matching(tmp_path, "title:reed") == []
        assert matching(tmp_path, "standing") == []


def test_what_is_no_query_is_told_and_how_to_ask(tmp_path: Path) -> None:
    with contextlib.closing(shelved(tmp_path, (1, "a", "b"))):
        # The last would end the process, if it were looked at.
        for words in ('"unfinished', "nowhere:word", "title:[", "AND OR", "\udcff", "(" * 50_000):
            with pytest.raises(QueryFailed) as told:
                matching(tmp_path, words)
            assert "title" in told.value.hint


def test_only_named_columns_are_searched_and_others_once_they_are_named(tmp_path: Path) -> None:
    books: tuple[Row, ...] = ((1, "red", "blue"),)
    shelved(tmp_path, *books, fields=("title",)).close()
    assert (matching(tmp_path, "red"), matching(tmp_path, "blue")) == ([1], [])
    with contextlib.closing(SearchStore(tmp_path, "books", ("by",))) as store:
        store.take("a test", 1)
        serving = store.standing(Part.SERVING)
        assert serving is not None
        # Which is how a follower is told to build it anew.
        assert serving.wish < store.wish()
    shelved(tmp_path, *books, fields=("by",)).close()
    assert (matching(tmp_path, "red"), matching(tmp_path, "blue")) == ([], [1])
    with pytest.raises(ShapeRefused, match="'price'"):
        shelved(tmp_path, fields=("price",))


def test_keys_of_any_length_are_one_row_each(see: SeeSearch) -> None:
    with contextlib.closing(see.open()) as store:
        fence = grown(store, 0)
        long = "x" * 100_000
        for number, key in enumerate((long, long + "y", long)):
            changes = Changes(SHAPE)
            changes.put((key, number))
            store.apply(Part.SERVING, changes, position_of(number - 1), position_of(number), fence)
        assert sorted(store.rows()) == [(long, 2), (long + "y", 1)]


def test_infinite_keys_are_two(tmp_path: Path) -> None:
    shape = Shape((Field("at", Plain("float"), False), Field("n", Plain("int"), True)), ("at",))
    with contextlib.closing(SearchStore(tmp_path, "sales")) as store:
        hand = Hand(store)
        hand.serve(shape)
        hand.apply(changes(shape, (float("inf"), 1), (float("-inf"), 2), ("NaN", 3), (0.5, 4)))
        assert list(store.rows()) == [(float("-inf"), 2), (0.5, 4), (float("inf"), 1), ("NaN", 3)]


def test_columns_are_searched_whatever_they_are_called(tmp_path: Path) -> None:
    names = ["id", "-a", "_-a", "_", "__", "_headrace_key", "__headrace_key", "a b", "a.b", 'a"b']
    shape = Shape(tuple(Field(name, Plain("text"), True) for name in names), ("id",))
    with contextlib.closing(SearchStore(tmp_path, "books")) as store:
        hand = Hand(store)
        hand.serve(shape)
        hand.apply(changes(shape, *(tuple(f"w{row}x{at}" for at in range(len(names))) for row in range(2))))
        assert [matching(tmp_path, f"w1x{at}") for at in range(len(names))] == [["w1x0"]] * len(names)


def test_a_thousand_columns_and_a_text_of_megabytes_are_one_row(tmp_path: Path) -> None:
    shape = Shape(tuple(Field(f"c{number}", Plain("text"), True) for number in range(1_000)), ("c0",))
    row: Row = ("key", "needle " + "hay " * 1_000_000, *("",) * 998)
    with contextlib.closing(SearchStore(tmp_path, "books")) as store:
        hand = Hand(store)
        hand.serve(shape)
        hand.apply(changes(shape, row))
        assert list(store.rows()) == [row]
        assert matching(tmp_path, "c1:needle") == ["key"]


def test_an_index_of_many_rows_is_read_whole(tmp_path: Path) -> None:
    shelved(tmp_path, *((one, f"book {one}", None) for one in range(21_000))).close()
    with contextlib.closing(SearchReader(tmp_path)) as reader:
        assert reader.count("books") == 21_000
        with reader.reading("books", 60) as (names, rows):
            assert names == ["id", "title", "by"]
            assert {row[0] for row in rows} == set(range(21_000))


# Files


def test_many_small_batches_leave_few_files(see: SeeSearch) -> None:
    with contextlib.closing(see.open()) as store:
        grown(store, 300)
        files = [path for path in see.path.rglob("*") if path.is_file()]
        assert len(files) < _FILES_MAX
        assert sum(path.stat().st_size for path in files) < 1 << 20
    assert see.look() == (299, rows_after(299))


def test_what_is_not_ours_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "mine.txt").write_text("mine")
    with pytest.raises(StoreForeign):
        SearchStore(tmp_path, "sales")
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnusable):
        SearchStore(tmp_path / "file", "sales")
    assert [path.name for path in (tmp_path / "sales").iterdir()] == ["mine.txt"]


def test_a_damaged_index_is_told_and_one_without_its_files_is_built_again(see: SeeSearch) -> None:
    with contextlib.closing(see.open()) as store:
        grown(store, 3)
    (stored,) = sorted(see.path.rglob("*.store"))[:1]
    stored.write_bytes(b"\xa5" * stored.stat().st_size)
    with contextlib.closing(see.open()) as store, pytest.raises(StoreDamaged) as told:
        store.take("a test", 1)
    assert "built again" in told.value.hint
    for path in see.path.rglob("*.store"):
        path.unlink()
    with contextlib.closing(see.open()) as store:
        store.take("a test", 1)
        assert store.standing(Part.SERVING) is None


def test_one_damaged_index_does_not_keep_the_others_from_being_read(tmp_path: Path) -> None:
    shelved(tmp_path, (1, "red", "blue")).close()
    (tmp_path / "other" / "catalog").mkdir(parents=True)
    (tmp_path / "other" / "catalog" / f"{1:020}.json").write_text("{")
    with contextlib.closing(SearchReader(tmp_path)) as reader:
        assert [(one.view, one.part) for one in reader.known_of("books")] == [("books", Part.SERVING)]
        with pytest.raises(StoreDamaged):
            reader.known()
        taken_away(tmp_path)
        with pytest.raises(StoreReplaced):
            reader.known()


def test_a_full_disk_is_waited_for(see: SeeSearch) -> None:
    without_room(see)


def test_what_is_committed_while_another_takes_the_view_does_not_go_again(
    see: SeeSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = catalog.write_synced
    with contextlib.closing(see.open()) as store, contextlib.closing(see.open()) as other:
        hand = Hand(store)
        hand.serve()

        def struck(path: Path, data: bytes) -> None:
            write(path, data)
            if hand.position.batch < 0:
                hand.apply(changes(SHAPE, ("a", 1)))

        monkeypatch.setattr(catalog, "write_synced", struck)
        other.take("a successor", 1)
        assert see.look() == (0, [("a", 1)])


@pytest.mark.parametrize("seed", range(3))
def test_a_writer_that_slept_in_a_batch_and_was_replaced_is_refused(see: SeeSearch, seed: int) -> None:
    a_zombie_wakes(see, seed)


def test_a_writer_that_is_killed_again_and_again_leaves_nothing_that_grows(see: SeeSearch) -> None:
    a_writer_is_killed(see, 5, seed=11)
    assert len([path for path in see.path.rglob("*") if path.is_file()]) < _FILES_MAX
    assert len([path for path in (see.path / "sales").iterdir() if path.is_dir()]) <= 4


# Followed and proven


def shop(cluster: Cluster, home: Path, name: str) -> Shop:
    def look(view: str) -> dict[str, Any] | None:
        found = look_at_search(home / "shop.search", view)
        return None if found is None else {row["order"]: tuple(row.values()) for row in found[1]}

    return Shop(cluster, home, name, Search(), look)


def test_a_folder_that_goes_while_nothing_comes_is_noticed_and_built_again(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"), ("b", 2, "two"), ("a", None, ""))
    with made.following() as follower:
        made.expect({"b": ("b", 2, "two")})
        taken_away(tmp_path / "shop.search")
        until(lambda: follower.status.rebuilds == 2, "the rebuild", timeout_s=240)
        made.expect({"b": ("b", 2, "two")})


def test_an_older_copy_that_is_put_back_catches_up(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"))
    with made.following():
        made.expect({"a": ("a", 1, "one")})
    shutil.copytree(tmp_path / "shop.search", tmp_path / "kept")
    with made.following() as follower:
        made.write(("b", 2, "two"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two")})
        (tmp_path / "shop.search").rename(tmp_path / "newer")
        (tmp_path / "kept").rename(tmp_path / "shop.search")
        made.write(("c", 3, "three"))
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
        assert follower.status.rebuilds == 0


def plant(home: Path, view: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Whatever ``change`` makes of the stored document of row ``b``, or of the position."""
    catalog = sorted((home / "shop.search" / view / "catalog").glob("*.json"))[-1]
    index = tantivy.Index.open(str(catalog.parent.parent / json.loads(catalog.read_text())["serving"]))
    words = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).build()
    index.register_tokenizer("headrace_words", words)
    searcher, writer = index.searcher(), index.writer(15_000_000, 1)
    for _, address in searcher.search(tantivy.Query.all_query(), 100).hits:
        told = json.loads(searcher.doc(address).get_first("_headrace_row"))
        key = "standing" if "position" in told else f'=["{told["order"]}"]'
        made = change(dict(told))
        if made != told:
            writer.delete_documents_by_term("_headrace_key", key)
            if made is not None:
                document = tantivy.Document()
                document.add_text("_headrace_key", key)
                document.add_bytes("_headrace_row", json.dumps(made).encode())
                if key != "standing":
                    document.add_unsigned("_headrace_bucket", 1)
                writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()


def test_what_is_planted_in_an_index_is_named(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    made = shop(cluster, tmp_path, fresh("orders"))
    made.write(("a", 1, "one"), ("b", 2, "two"), ("c", 3, "three"))
    with made.following():
        made.expect({"a": ("a", 1, "one"), "b": ("b", 2, "two"), "c": ("c", 3, "three")})
    report = made.verify()
    assert (report.verdict, report.found_rows, report.behind) == ("proven", 3, 0), report.lines()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "shop.search", kept)

    def again() -> None:
        shutil.rmtree(tmp_path / "shop.search")
        shutil.copytree(kept, tmp_path / "shop.search")

    plant(tmp_path, made.view.name, lambda row: {**row, "note": "2"} if row.get("order") == "b" else row)
    (wrong,) = made.verify().differences
    assert (wrong.kind, wrong.key, wrong.columns) == ("different", {"order": "b"}, ["note"])
    again()
    plant(tmp_path, made.view.name, lambda row: None if row.get("order") == "b" else row)
    (wrong,) = made.verify().differences
    assert (wrong.kind, wrong.key) == ("missing", {"order": "b"})
    again()
    plant(tmp_path, made.view.name, lambda row: {**row, "order": "z"} if row.get("order") == "b" else row)
    assert {(one.kind, one.key["order"]) for one in made.verify().differences} == {
        ("missing", "b"),
        ("extra", "z"),
    }
    again()
    moved = {"position": {"offsets": {"0": 99}}}
    plant(
        tmp_path,
        made.view.name,
        lambda row: (
            {**row, "position": {**row["position"], **moved["position"]}} if "position" in row else row
        ),
    )
    assert [one.kind for one in made.verify().findings] == ["position"]
