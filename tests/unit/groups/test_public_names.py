"""What the package offers to the rest of the broker."""

from __future__ import annotations

from headrace.broker import groups


def test_the_public_names_are_these() -> None:
    assert sorted(groups.__all__) == [
        "DescribedGroup",
        "DescribedMember",
        "ExpiredOffset",
        "GROUP_TYPE",
        "GroupCoordinator",
        "GroupSettings",
        "JoinAnswer",
        "JoinAsk",
        "LeaveAsk",
        "ListedGroup",
        "OffsetRow",
        "SyncAnswer",
        "SyncAsk",
        "TopicNames",
    ]
    assert all(hasattr(groups, name) for name in groups.__all__)
