"""Writes one index, alone: the folder is this follower's (``store``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import tantivy

from headrace.private import DIR_MODE, make_private_dir
from headrace.views.changes import Changes
from headrace.views.position import Position, Shape
from headrace.views.search.copying import opstamp_of
from headrace.views.search.fields import KEY, ROW, TOKENIZER, Documents, analyzer
from headrace.views.search.snapshot import STANDING, Snapshot, Told, opened

__all__ = ["IndexWriting"]

_HEAP_BYTES = 64_000_000
# One makes one segment per commit; more of them make small batches dearer.
_THREADS = 1


class IndexWriting:
    def __init__(self, folder: Path, index: tantivy.Index, told: Told | None, documents: Documents) -> None:
        self.folder = folder
        # Nobody asks this object, so nothing need look for new commits.
        index.config_reader("manual")
        self._writer = index.writer(_HEAP_BYTES, _THREADS)
        self._documents = documents
        self._opstamp = opstamp_of(folder)
        self.told = told

    @classmethod
    def made(cls, folder: Path, shape: Shape, searched: Sequence[str], told: Told) -> IndexWriting:
        make_private_dir(folder.parent)
        folder.mkdir(DIR_MODE)
        documents = Documents(shape, searched)
        index = tantivy.Index(documents.schema(), str(folder))
        index.register_tokenizer(TOKENIZER, analyzer())
        writing = cls(folder, index, None, documents)
        writing._commit(told)
        return writing

    @classmethod
    def of(cls, folder: Path) -> IndexWriting:
        found = Snapshot(folder)
        return cls(folder, opened(folder), found.told, found.documents)

    def is_as_left(self) -> bool:
        """Whether the last commit is the one that was made here; a merge of segments leaves it what it is."""
        return self._opstamp == opstamp_of(self.folder)

    def apply(self, changes: Changes, after: Position) -> None:
        assert self.told is not None
        term = self._documents.term
        gone = [term(key) for key in changes.deletes]
        made = [self._documents.document(row) for row in changes.upserts]
        delete, add = self._writer.delete_documents_by_term, self._writer.add_document
        for one in gone:
            delete(KEY, one)
        for one, document in made:
            delete(KEY, one)
            add(document)
        self._commit(msgspec.structs.replace(self.told, position=after))

    def _commit(self, told: Told) -> None:
        document = tantivy.Document()
        document.add_text(KEY, STANDING)
        document.add_bytes(ROW, msgspec.json.encode(told))
        self._writer.delete_documents_by_term(KEY, STANDING)
        self._writer.add_document(document)
        self._opstamp = self._writer.commit()
        self.told = told
