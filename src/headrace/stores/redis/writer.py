"""Writes one view in Redis. ``headrace.stores.redis.layout`` describes the keys.

One transaction writes the rows of a batch, the position after them, and the new number of rows. A server can lose its
last writes, for example after a crash, a failover to a replica, or a restore from a backup. It then loses whole
batches. The follower continues from the earlier position, whose rows match, and applies the rest again.

The transaction watches the owner, the position and the rows, from before the checks until EXEC.

A swap is one script, which renames keys. UNLINK frees a replaced hash in a background thread of the server, before
RENAME uses its key. RENAME alone would block the server until it has freed the hash.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice

from headrace.stores.errors import PositionMoved, StoreBusy, StoreForeign
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.redis.layout import (
    FORMAT,
    Keys,
    Metadata,
    parse_metadata,
    position_json,
    read_metadata,
)
from headrace.stores.redis.reader import check_eviction, check_format
from headrace.stores.redis.server import Command, Server, guarded, store_position
from headrace.stores.row_json import RowJson
from headrace.stores.rows import Row
from headrace.stores.writer import (
    Changes,
    Fence,
    Owner,
    Part,
    StoreWriter,
    check_droppable,
    check_fence,
    check_kept,
    check_position,
    check_view_name,
    next_owner,
)

__all__ = ["RedisWriter"]

_ROWS_PER_COMMAND = 500
_SCRIPT_DELETES_MAX = 10_000
_ATTEMPTS_MAX = 20
_PART_ID_BYTES = 8
_GUARDED_FIELDS = ("epoch", "owner", "wish", *Part)
"""The metadata fields that must not change between the checks and the execution."""


class RedisWriter(StoreWriter):
    def __init__(self, address: str, prefix: str, view: str) -> None:
        check_view_name(view)
        self.view = view
        self._keys = Keys(prefix, view)
        self._server = Server(address, f"headrace:{view}", lambda: self.is_stopping)
        self.where = f"{self._server.where}, key {self._keys.serving}"
        self._codecs: dict[Part, tuple[str, RowJson]] = {}
        try:
            check_eviction(self._server)
            check_format(self._server, self._metadata())
        except BaseException:
            self._server.close()
            raise

    def close(self) -> None:
        self._server.close()

    def _metadata(self) -> Metadata:
        return parse_metadata(self._server.execute(*read_metadata(self._keys)))

    def _change(self, decide: Callable[[Metadata], Iterable[Command]]) -> None:
        """Execute the commands that ``decide`` returns, in a script. If the metadata has changed, call ``decide``
        again.

        ``decide`` raises an error to prevent the change.
        """
        keys = self._keys

        def attempt() -> bool:
            metadata = self._metadata()
            expected = {name: metadata.fields.get(name, "") for name in _GUARDED_FIELDS}
            sizes = {keys.rows(part): count for part, count in metadata.row_counts.items()}
            return bool(self._server.execute(*guarded(keys.metadata, expected, sizes, decide(metadata))))

        self._retry(attempt)

    def _change_rows(self, decide: Callable[[Metadata], Iterable[Command]]) -> None:
        """Do the same as ``_change``, but in a transaction, for many rows."""
        keys = self._keys

        def attempt() -> bool:
            responses = self._server.watch((keys.metadata, *keys.all_rows()), read_metadata(keys))
            try:
                commands = decide(parse_metadata(responses))
            except BaseException:
                self._server.unwatch()
                raise
            return self._server.commit(commands)

        self._retry(attempt)

    def _retry(self, attempt: Callable[[], bool]) -> None:
        if not any(attempt() for _ in range(_ATTEMPTS_MAX)):
            raise StoreBusy(
                f"another program changes {self.where} too often: {_ATTEMPTS_MAX} attempts failed",
                hint="stop the other program; only the follower may change the keys of a view",
            )

    # Ownership

    def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
        owners: list[Owner] = []

        def decide(metadata: Metadata) -> list[Command]:
            owners[:] = [owner := next_owner(self.view, name, metadata.owner, before)]
            values = ("format", FORMAT, "epoch", owner.epoch, "owner", owner.name, "taken_ms", now_ms)
            key = self._keys.metadata
            return [("HDEL", key, "taken_ms"), ("HSET", key, *values), ("HSETNX", key, "wish", 0)]

        self._change(decide)
        return owners[0]

    def _check(self, metadata: Metadata, part: Part, before: Position | None, fence: Fence) -> None:
        """Raise unless the fence is current, the part is at the position ``before``, and its rows are unchanged."""
        position = metadata.position(part)
        check_fence(self.view, fence, metadata.owner, None if position is None else position.generation)
        check_position(self.view, self.where, before, position)
        if fault := metadata.fault(part):
            raise PositionMoved(
                f"the rows of view {self.view!r} at {self.where} changed: {fault}",
                hint="the follower rebuilds the view; only the follower may change the keys of a view",
            )

    # State and rows

    def state(self, part: Part) -> ViewState | None:
        return self._metadata().state(part)

    def rebuild_requests(self) -> int:
        return int(self._server.execute("HGET", self._keys.metadata, "wish") or 0)

    def request_rebuild(self) -> None:
        self._server.execute("HINCRBY", self._keys.metadata, "wish", 1)

    def rows(self, part: Part = Part.SERVING) -> Iterator[Row]:
        """Read all rows at once, so that they are from the same moment."""
        responses = self._server.execute(*read_metadata(self._keys, ("HVALS", self._keys.rows(part))))
        state = parse_metadata(responses).state(part)
        if state is None:
            raise PositionMoved(f"view {self.view!r} has no {part} part at {self.where}")
        codec = RowJson(state.schema)
        yield from sorted(map(codec.row, responses[-1]), key=codec.key_of)

    # Writes

    def begin(self, schema: ViewSchema, position: Position, reason: str, fence: Fence) -> ViewState:
        created: list[ViewState] = []
        # Check again, because eviction might be the reason for this rebuild.
        check_eviction(self._server)

        def decide(metadata: Metadata) -> list[Command]:
            check_fence(self.view, fence, metadata.owner, None)
            self._check_key_free(metadata)
            created[:] = [ViewState(schema, position, metadata.rebuild_requests, reason)]
            state = (
                *("building", position_json(position), "building.rows", 0),
                *("building.shape", schema.to_json()),
                *("building.wish", metadata.rebuild_requests, "building.reason", reason),
                *("building.id", secrets.token_hex(_PART_ID_BYTES)),
            )
            return [("UNLINK", self._keys.rows(Part.BUILDING)), ("HSET", self._keys.metadata, *state)]

        self._change(decide)
        return created[0]

    def _check_key_free(self, metadata: Metadata) -> None:
        if metadata.position(Part.SERVING) is None and metadata.row_counts[Part.SERVING]:
            raise StoreForeign(
                f"{self.where} is a hash that no follower created, with {metadata.row_counts[Part.SERVING]} fields",
                hint="delete or rename the hash, or use another prefix for the views; the hash was not changed",
            )

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        upserts, deletes = changes.upserts, changes.deletes
        end: Command

        def decide(metadata: Metadata) -> Iterable[Command]:
            self._check(metadata, part, before, fence)
            if after.generation != fence.generation:
                check_fence(self.view, fence, fence.owner, after.generation)
            return chain(self._commands(part, self._codec(metadata, part), upserts, deletes), [end])

        position_arguments = (self._keys.metadata, self._keys.rows(part), part, position_json(after))
        # If the server has no memory left, it rejects the transaction, but not the script.
        if upserts or len(deletes) > _SCRIPT_DELETES_MAX:
            end = store_position(*position_arguments)
            self._change_rows(decide)
        else:
            end = ("STORE_POSITION", *position_arguments)
            self._change(decide)

    def _commands(
        self, part: Part, codec: RowJson, upserts: list[Row], deletes: list[Row]
    ) -> Iterator[Command]:
        """Yield the commands, and encode the rows while sending, so that this process does not hold the batch twice."""
        key, encode_pair, encode_key = self._keys.rows(part), codec.pair, codec.key
        rows = iter(upserts)
        while chunk := list(islice(rows, _ROWS_PER_COMMAND)):
            arguments: list[str | bytes | int] = ["HSET", key]
            for row in chunk:
                arguments += encode_pair(row)
            yield arguments
        deleted = iter(deletes)
        while fields := [encode_key(row_key) for row_key in islice(deleted, _ROWS_PER_COMMAND)]:
            yield "HDEL", key, *fields

    def _codec(self, metadata: Metadata, part: Part) -> RowJson:
        """Return the codec of the part. The result is cached until the schema changes."""
        schema = metadata.fields[f"{part}.shape"]
        cached = self._codecs.get(part)
        if cached is None or cached[0] != schema:
            cached = self._codecs[part] = (schema, RowJson(ViewSchema.parse(schema)))
        return cached[1]

    def swap(self, fence: Fence, keep: bool = False) -> None:
        keys = self._keys

        def decide(metadata: Metadata) -> list[Command]:
            self._check(metadata, Part.BUILDING, None, fence)
            self._check_key_free(metadata)
            sources = {Part.SERVING: Part.BUILDING}
            commands: list[Command] = []
            if keep and _can_be_kept(metadata):
                sources[Part.KEPT] = Part.SERVING
                commands.append(("UNLINK", keys.rows(Part.KEPT)))
                if metadata.row_counts[Part.SERVING]:
                    commands.append(("RENAME", keys.serving, keys.rows(Part.KEPT)))
            else:
                commands.append(("UNLINK", keys.serving))
            if metadata.row_counts[Part.BUILDING]:
                commands.append(("RENAME", keys.rows(Part.BUILDING), keys.serving))
            return [*commands, *_move_fields(keys, metadata, sources)]

        self._change(decide)

    def swap_back(self, fence: Fence) -> None:
        keys = self._keys
        kept = keys.rows(Part.KEPT)

        def decide(metadata: Metadata) -> list[Command]:
            check_kept(self.view, self.where, fence, metadata.owner, metadata.position(Part.KEPT))
            self._check(metadata, Part.KEPT, None, fence)
            self._check_key_free(metadata)
            sources = {Part.SERVING: Part.KEPT}
            requests = max(metadata.fulfilled_requests(part) for part in (Part.SERVING, Part.KEPT))
            commands: list[Command] = [("UNLINK", keys.moving)]
            if _can_be_kept(metadata):
                sources[Part.KEPT] = Part.SERVING
            else:
                commands.append(("UNLINK", keys.serving))
            has_rows = Part.KEPT in sources and metadata.row_counts[Part.SERVING] > 0
            if has_rows:
                commands.append(("RENAME", keys.serving, keys.moving))
            if metadata.row_counts[Part.KEPT]:
                commands.append(("RENAME", kept, keys.serving))
            if has_rows:
                commands.append(("RENAME", keys.moving, kept))
            fulfilled = ("HSET", keys.metadata, "serving.wish", requests)
            return [*commands, *_move_fields(keys, metadata, sources), fulfilled]

        self._change(decide)

    def drop(self, part: Part, fence: Fence) -> None:
        check_droppable(self.view, part)

        def decide(metadata: Metadata) -> list[Command]:
            check_fence(self.view, fence, metadata.owner, None)
            names = metadata.names(part)
            delete_fields: list[Command] = [("HDEL", self._keys.metadata, *names)] if names else []
            return [("UNLINK", self._keys.rows(part)), *delete_fields]

        self._change(decide)


def _can_be_kept(metadata: Metadata) -> bool:
    """Return whether the serving part exists and has no fault."""
    return metadata.position(Part.SERVING) is not None and not metadata.fault(Part.SERVING)


def _move_fields(keys: Keys, metadata: Metadata, sources: Mapping[Part, Part]) -> list[Command]:
    """Give each part in ``sources`` the fields of its source. Delete the other fields of these parts and sources."""
    old_names = [name for part in {*sources, *sources.values()} for name in metadata.names(part)]
    values = [text for part, source in sources.items() for text in metadata.fields_as(part, source=source)]
    return [("HDEL", keys.metadata, *old_names), ("HSET", keys.metadata, *values)]
