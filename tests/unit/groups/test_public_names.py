"""The public names of the package."""

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
        "JoinRequest",
        "JoinResult",
        "LeavingMember",
        "ListedGroup",
        "OffsetRow",
        "SyncRequest",
        "SyncResult",
        "TopicNames",
    ]
    assert all(hasattr(groups, name) for name in groups.__all__)
