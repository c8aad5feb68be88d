"""Committing, reading and deleting offsets, and the retention that drops those nobody can want any more.

An OffsetCommit is answered when the journal has it, and an OffsetFetch sees nothing that the journal has not.
Retention goes by a time that its caller vouches for: a wall clock that was set wrong for an hour must not
cost a group its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from headrace.broker.groups.answers import ExpiredOffset
from headrace.broker.groups.budget import Budget
from headrace.broker.groups.entries import (
    GroupGone,
    OffsetRow,
    OffsetsEntry,
    OffsetsGone,
    TopicGone,
    TransactionOffsets,
)
from headrace.broker.groups.group import Group, State
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.rebalancer import Rebalancer, write_error
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.subscription import CONSUMER_PROTOCOL_TYPE
from headrace.broker.groups.topic_names import TopicNames
from headrace.broker.sizes import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Commit", "Commits"]

#: Topic, partition, offset, leader epoch (−1: none), metadata.
Commit = tuple[str, int, int, int, str | None]


_FOREVER_MS = 2**63 - 1
_PENDING_WEIGHT = 2
_ROWS_AT_ONCE = 5_000


class Commits:
    def __init__(
        self,
        groups: dict[str, Group],
        settings: GroupSettings,
        rebalancer: Rebalancer,
        ledger: Ledger,
        topics: TopicNames,
        budget: Budget,
        trusted_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._budget = budget
        self._settings = settings
        self._rebalancer = rebalancer
        self._ledger = ledger
        self._topics = topics
        self._trusted_ms = trusted_ms
        self._offsets = ledger.kept.offsets
        self._pending = ledger.kept.pending

    # -- commit

    async def commit(
        self,
        group_id: str,
        commits: Sequence[Commit],
        *,
        member_id: str = "",
        instance_id: str | None = None,
        generation: int = -1,
        retention_ms: int = -1,
        knows_group_not_found: bool = True,
    ) -> list[ErrorCode]:
        """One error for each commit, in their order."""
        has_partition = self._topics.has_partition
        errors = [
            ErrorCode.NONE if has_partition(commit[0], commit[1]) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for commit in commits
        ]
        # As Kafka does, a request that names no partition of ours is answered before the group is looked at.
        if ErrorCode.NONE not in errors:
            return errors
        refusal = self._check(group_id, member_id, instance_id, generation, knows_group_not_found)
        group = self._groups.get(group_id)
        if refusal is ErrorCode.NONE and group is not None and member_id in group.members:
            # A commit is as good a sign of life as a heartbeat.
            self._rebalancer.watch(group, group.members[member_id])
        if refusal is not ErrorCode.NONE:
            return _fail(errors, refusal)
        rows = self._rows(group_id, commits, errors, retention_ms)
        if rows:
            failure = await self._ledger.put(OffsetsEntry(group_id, rows))
            if failure is not None:
                return _fail(errors, write_error(failure))
        return errors

    async def commit_in(
        self,
        transaction: str,
        group_id: str,
        commits: Sequence[Commit],
        admit: Callable[[], ErrorCode],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
    ) -> list[ErrorCode]:
        """As ``commit``, but they count only from the end of the transaction on, if that is a commit.

        ``admit`` is asked when nothing else stands against it, right before they become part of the transaction.
        """
        has_partition = self._topics.has_partition
        errors = [
            ErrorCode.NONE if has_partition(commit[0], commit[1]) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for commit in commits
        ]
        if ErrorCode.NONE not in errors:
            return errors
        refusal = admit() if group_id else ErrorCode.INVALID_GROUP_ID
        if refusal is ErrorCode.NONE:
            refusal = self._check(group_id, member_id, instance_id, generation, False, in_transaction=True)
        if refusal is not ErrorCode.NONE:
            return _fail(errors, refusal)
        rows = self._rows(group_id, commits, errors, -1, transaction)
        if rows:
            failure = await self._ledger.put(TransactionOffsets(transaction, group_id, rows))
            if failure is not None:
                return _fail(errors, write_error(failure))
        return errors

    def _check(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        knows_group_not_found: bool,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            if len(group_id) > self._settings.group_id_chars_max:
                return ErrorCode.INVALID_GROUP_ID
            if generation >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND if knows_group_not_found else ErrorCode.ILLEGAL_GENERATION
            if len(self._groups) >= self._settings.groups_max or not self._budget.has_room_for(group_id):
                return ErrorCode.POLICY_VIOLATION
            return ErrorCode.NONE
        if generation < 0 and group.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            # Somebody who is no member may set offsets only while there are no members to be surprised. Old
            # versions of TxnOffsetCommit cannot say who they are.
            return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is State.COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _rows(
        self,
        group_id: str,
        commits: Sequence[Commit],
        errors: list[ErrorCode],
        retention_ms: int,
        transaction: str | None = None,
    ) -> list[OffsetRow]:
        """The rows to store; ``errors`` gets those that are too much."""
        limits = self._settings
        offsets = self._offsets
        now_ms = self._trusted_ms()
        expires_ms = min(now_ms + retention_ms, _FOREVER_MS) if retention_ms >= 0 else -1
        # The last one counts where a request names a partition twice.
        rows: dict[tuple[str, int], OffsetRow] = {}
        pending = self._pending
        count = offsets.count + _PENDING_WEIGHT * pending.count
        size = offsets.metadata_bytes + pending.metadata_bytes
        for index, (topic, partition, offset, leader_epoch, metadata) in enumerate(commits):
            if errors[index]:
                continue
            text = metadata or ""
            if len(text) > limits.offset_metadata_chars_max:
                errors[index] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            old = (
                offsets.get(group_id, topic, partition)
                if transaction is None
                else pending.get(transaction, group_id, topic, partition)
            )
            more = 0 if old is not None else 1 if transaction is None else _PENDING_WEIGHT
            more_bytes = text_bytes(text) - (0 if old is None else text_bytes(old.metadata))
            if (more and count + more > limits.offsets_max) or (
                more_bytes > 0 and size + more_bytes > limits.all_offset_metadata_bytes_max
            ):
                errors[index] = ErrorCode.POLICY_VIOLATION
                continue
            count += more
            size += more_bytes
            rows[topic, partition] = OffsetRow(
                topic, partition, offset, leader_epoch, text, now_ms, expires_ms
            )
        return list(rows.values())

    # -- fetch

    def fetch(self, group_id: str, topic: str, partition: int) -> OffsetRow | None:
        return self._offsets.get(group_id, topic, partition)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction may still change this offset."""
        return self._pending.has(group_id, topic, partition)

    def fetch_all(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        return self._offsets.of_group(group_id)

    # -- delete

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | list[ErrorCode]:
        """One error for each partition, in their order, or one for the whole request."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP
        errors = []
        gone = []
        for topic, partition in partitions:
            if not self._topics.has_partition(topic, partition):
                errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif group.is_subscribed(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(ErrorCode.NONE)
                if self._offsets.get(group_id, topic, partition) is not None:
                    gone.append((topic, partition))
        if gone:
            failure = await self._ledger.put(OffsetsGone(group_id, gone))
            if failure is not None:
                return write_error(failure)
        return errors

    async def forget_topic(self, topic: str) -> None:
        """Drop all groups' offsets for a topic that is no more; raise if that cannot be made durable.

        Written even if there are none: a commit may be under way.
        """
        _raise(await self._ledger.put(TopicGone(topic)))

    async def forget_missing_topics(self) -> None:
        """Do so for all topics that do not exist: a crash may have come between their end and this."""
        for topic in self._offsets.topics():
            if self._topics.id_of(topic) is None:
                await self.forget_topic(topic)

    # -- retention

    async def expire(self, now_ms: int) -> list[ExpiredOffset]:
        """Drop what has outlived its retention, and groups with nothing left; raise if that is not durable.

        A group with something under way is left for the next time, and so is one that an open transaction has
        offsets for: it may be the very commit that keeps an offset alive.
        """
        expired: list[ExpiredOffset] = []
        writes: list[asyncio.Future[Exception | None]] = []
        seen = 0
        for group in list(self._groups.values()):
            if seen > _ROWS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
            if self._groups.get(group.id) is not group or not self._is_at_rest(group.id):
                continue
            rows = list(self._offsets.rows(group.id))
            seen += 1 + len(rows)
            old = [row for row in rows if self._is_expired(group, row, now_ms)]
            expired += [ExpiredOffset(group.id, row.topic, row.partition, row.offset) for row in old]
            if len(old) == len(rows) and self._is_idle(group, now_ms):
                writes.append(self._ledger.put(GroupGone(group.id)))
            elif old:
                partitions = [(row.topic, row.partition) for row in old]
                writes.append(self._ledger.put(OffsetsGone(group.id, partitions)))
        for write in writes:
            _raise(await write)
        return expired

    def _is_at_rest(self, group_id: str) -> bool:
        return self._ledger.is_settled(group_id) and not self._pending.has_group(group_id)

    def _is_idle(self, group: Group, now_ms: int) -> bool:
        if group.state is not State.EMPTY or group.pending:
            return False
        return now_ms - group.since_ms >= self._settings.empty_group_kept_ms

    def _is_expired(self, group: Group, row: OffsetRow, now_ms: int) -> bool:
        if group.protocol_type is None:
            since_ms = row.committed_ms
        elif group.state is State.EMPTY:
            # Kafka counts from when the group was emptied alone, so there an offset that is set by hand after
            # a week of rest is gone at the next clean-up.
            since_ms = max(group.since_ms, row.committed_ms)
        elif (
            group.state is State.STABLE
            and group.protocol_type == CONSUMER_PROTOCOL_TYPE
            and not group.is_subscribed(row.topic)
        ):
            since_ms = row.committed_ms
        else:
            return False
        if row.expires_ms >= 0:
            return now_ms >= row.expires_ms
        return now_ms - since_ms >= self._settings.offsets_retention_ms


def _fail(errors: list[ErrorCode], error: ErrorCode) -> list[ErrorCode]:
    """The same error for all but those that have their own."""
    return [own or error for own in errors]


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise failure
