"""A store in the hands of a test: a follower that does as it is told."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from headrace.model.kinds import Digits, Field, Plain
from headrace.views.changes import Changes
from headrace.views.position import NO_BATCH, Shape
from headrace.views.rows import Row
from headrace.views.store import Fence, Part, Store
from tests.contract.store_writer import SHAPE, position_of

__all__ = ["EVERYTHING", "ROWS", "Hand", "changes"]

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
EVERYTHING = Shape(
    (
        Field("key", Plain("text"), False),
        Field("many", Plain("int"), True),
        Field("share", Plain("float"), True),
        Field("is it", Plain("bool"), True),
        Field("amount", Digits(), True),
        Field('raw"bytes', Plain("bytes"), True),
    ),
    ("key",),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ROWS = st.tuples(
    TEXT,
    st.none() | st.integers(INT_MIN, INT_MAX),
    st.none() | st.floats(allow_nan=False).map(lambda one: one + 0.0) | st.just("NaN"),
    st.none() | st.booleans(),
    # As many digits as are declared, and one zero.
    st.none() | st.integers(-(10**18) + 1, 10**18 - 1).map(lambda one: format(Decimal(one).scaleb(-6), "f")),
    st.none() | st.binary(max_size=8),
)


def changes(shape: Shape, *rows: Row, gone: tuple[Row, ...] = ()) -> Changes:
    made = Changes(shape)
    for row in rows:
        made.put(row)
    for key in gone:
        made.remove(key)
    return made


class Hand:
    """A follower by hand: an open store, and where its part is."""

    def __init__(self, store: Store, *, generation: int = 1) -> None:
        self.store = store
        self.owner = store.take("hand", 1)
        self.generation = generation
        self.position = position_of(NO_BATCH, generation)

    @property
    def fence(self) -> Fence:
        return Fence(self.owner, self.generation)

    def begin(self, shape: Shape = SHAPE) -> None:
        self.position = position_of(NO_BATCH, self.generation)
        self.store.begin(shape, self.position, "a test", self.fence)

    def apply(self, changed: Changes, part: Part = Part.SERVING) -> None:
        after = position_of(self.position.batch + 1, self.generation)
        self.store.apply(part, changed, self.position, after, self.fence)
        self.position = after

    def serve(self, shape: Shape = SHAPE) -> None:
        self.begin(shape)
        self.store.swap(self.fence)
