"""Consumer groups: membership and rebalances, committed offsets, and the journal that keeps both."""

from headrace.broker.groups.answers import (
    DescribedGroup,
    DescribedMember,
    ExpiredOffset,
    JoinAnswer,
    JoinAsk,
    LeaveAsk,
    ListedGroup,
    SyncAnswer,
    SyncAsk,
)
from headrace.broker.groups.coordinator import GROUP_TYPE, GroupCoordinator
from headrace.broker.groups.entries import OffsetRow
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.topic_names import TopicNames

__all__ = [
    "GROUP_TYPE",
    "DescribedGroup",
    "DescribedMember",
    "ExpiredOffset",
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
