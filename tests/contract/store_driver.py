"""Writes to a store like a follower, one call per step."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from headrace.model.kinds import Digits, Field, Scalar
from headrace.stores.position import NO_BATCH, ViewSchema
from headrace.stores.rows import Row
from headrace.stores.writer import Changes, Fence, Part, StoreWriter
from tests.contract.store_writer import SCHEMA, position_of

__all__ = ["EVERY_KIND", "ROWS", "StoreDriver", "changes"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
EVERY_KIND = ViewSchema(
    (
        Field("key", Scalar("text"), False),
        Field("many", Scalar("int"), True),
        Field("share", Scalar("float"), True),
        Field("is it", Scalar("bool"), True),
        Field("amount", Digits(), True),
        Field('raw"bytes', Scalar("bytes"), True),
    ),
    ("key",),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROWS = st.tuples(
    TEXT,
    st.none() | st.integers(INT_MIN, INT_MAX),
    st.none() | st.floats(allow_nan=False).map(lambda item: item + 0.0) | st.just("NaN"),
    st.none() | st.booleans(),
    # Decimals have the declared number of digits, and zero has no sign.
    st.none()
    | st.integers(-(10**18) + 1, 10**18 - 1).map(lambda item: format(Decimal(item).scaleb(-6), "f")),
    st.none() | st.binary(max_size=8),
)


def changes(schema: ViewSchema, *rows: Row, deleted: tuple[Row, ...] = ()) -> Changes:
    created = Changes(schema)
    for row in rows:
        created.put(row)
    for key in deleted:
        created.remove(key)
    return created


class StoreDriver:
    """A follower that a test controls: an open store, its owner, and the position of the part that it writes."""

    def __init__(self, store: StoreWriter, *, generation: int = 1) -> None:
        self.store = store
        self.owner = store.claim("driver", 1)
        self.generation = generation
        self.position = position_of(NO_BATCH, generation)

    @property
    def fence(self) -> Fence:
        return Fence(self.owner, self.generation)

    def begin(self, schema: ViewSchema = SCHEMA) -> None:
        self.position = position_of(NO_BATCH, self.generation)
        self.store.begin(schema, self.position, "a test", self.fence)

    def apply(self, changed: Changes, part: Part = Part.SERVING) -> None:
        after = position_of(self.position.batch + 1, self.generation)
        self.store.apply(part, changed, self.position, after, self.fence)
        self.position = after

    def serve(self, schema: ViewSchema = SCHEMA, *, keep: bool = False) -> None:
        self.begin(schema)
        self.store.swap(self.fence, keep)

    def serve_generation(self, generation: int, *rows: Row, schema: ViewSchema = SCHEMA) -> None:
        """Build a generation with these rows, and serve it. Keep the generation before it."""
        self.generation = generation
        self.begin(schema)
        self.apply(changes(schema, *rows), Part.BUILDING)
        self.store.swap(self.fence, keep=True)

    def at(self, generation: int, batch: int) -> StoreDriver:
        """Continue at the position of another part."""
        self.generation, self.position = generation, position_of(batch, generation)
        return self

    def part(self, part: Part) -> tuple[int, int, list[Row]] | None:
        """Return generation, batch and rows of a part, or None if it does not exist."""
        state = self.store.state(part)
        if state is None:
            return None
        return state.position.generation, state.position.batch, list(self.store.rows(part))
