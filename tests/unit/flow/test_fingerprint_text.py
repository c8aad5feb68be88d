"""The text of a schema in a fingerprint: it must never change, or every flow would count as changed."""

from __future__ import annotations

from headrace.flow.compile.fingerprint import _fields_text
from headrace.model.kinds import Digits, Enum, Field, List, Map, Record, Scalar


def test_the_fingerprint_text_of_every_kind_follows_rule_2() -> None:
    fields = (
        Field("a", Scalar("text"), False),
        Field("b", List(Map(Digits(20, 4), True)), True, [1]),
        Field("c", Record((Field("d", Enum(("x", "y")), True, "x"),)), False),
    )
    assert _fields_text(fields) == (
        "(Field(name='a', kind=Plain(name='text'), optional=False, default=None),"
        " Field(name='b', kind=Many(of=Named(of=Digits(precision=20, scale=4), optional=True), optional=False),"
        " optional=True, default=[1]),"
        " Field(name='c', kind=Record(fields=(Field(name='d', kind=Choice(values=('x', 'y')), optional=True,"
        " default='x'),)), optional=False, default=None))"
    )
