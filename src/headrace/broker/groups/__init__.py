"""Consumer groups: membership and rebalances, committed offsets, and the journal that stores both."""

from headrace.broker.groups.coordinator import GROUP_TYPE, GroupCoordinator
from headrace.broker.groups.entries import OffsetRow
from headrace.broker.groups.results import (
    DescribedGroup,
    DescribedMember,
    ExpiredOffset,
    JoinRequest,
    JoinResult,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResult,
)
from headrace.broker.groups.settings import GroupSettings, TopicNames

__all__ = [
    "GROUP_TYPE",
    "DescribedGroup",
    "DescribedMember",
    "ExpiredOffset",
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
