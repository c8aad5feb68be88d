"""Commit, fetch and delete committed offsets, and remove expired offsets.

The broker responds to an OffsetCommit when the offsets are in the journal. OffsetFetch returns only offsets that are in
the journal. Retention uses the broker's trusted time, so that a wrong wall clock cannot delete a group's offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from headrace.broker.groups.entries import (
    GroupDeleted,
    OffsetRow,
    OffsetsDeleted,
    OffsetsEntry,
    TopicDeleted,
    TransactionOffsets,
)
from headrace.broker.groups.group import Group, GroupContext, State
from headrace.broker.groups.member import CONSUMER_PROTOCOL_TYPE
from headrace.broker.groups.rebalancer import Rebalancer, code_of_write_error
from headrace.broker.groups.results import ExpiredOffset
from headrace.broker.limits import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Commit", "Commits"]

Commit = tuple[str, int, int, int, str | None]
"""Topic, partition, offset, leader epoch (-1 if unknown), metadata."""


_FOREVER_MS = 2**63 - 1
_PENDING_WEIGHT = 2
_ROWS_PER_YIELD = 5_000


class Commits:
    def __init__(self, context: GroupContext, rebalancer: Rebalancer) -> None:
        self._groups = context.groups
        self._settings = context.settings
        self._budget = context.budget
        self._ledger = context.ledger
        self._topics = context.topics
        self._trusted_ms = context.trusted_ms
        self._rebalancer = rebalancer
        self._offsets = context.ledger.state.offsets
        self._pending = context.ledger.state.pending

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
        supports_group_not_found: bool = True,
    ) -> list[ErrorCode]:
        """Commit offsets. Returns one error code per commit, in order."""
        errors = self._partition_errors(commits)
        # As in Kafka, the group is not checked if none of the partitions exists.
        if ErrorCode.NONE not in errors:
            return errors
        refusal = self._check(group_id, member_id, instance_id, generation, supports_group_not_found)
        group = self._groups.get(group_id)
        if refusal is ErrorCode.NONE and group is not None and member_id in group.members:
            # A commit counts as a heartbeat.
            self._rebalancer.watch(group, group.members[member_id])
        if refusal is not ErrorCode.NONE:
            return _fail(errors, refusal)
        rows = self._rows(group_id, commits, errors, retention_ms)
        if rows:
            failure = await self._ledger.put(OffsetsEntry(group_id, rows))
            if failure is not None:
                return _fail(errors, code_of_write_error(failure))
        return errors

    async def commit_in_transaction(
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
        """Like ``commit``, but the offsets take effect when the transaction commits.

        ``admit`` adds the group to the transaction, or returns the error if it cannot.
        """
        errors = self._partition_errors(commits)
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
                return _fail(errors, code_of_write_error(failure))
        return errors

    def _partition_errors(self, commits: Sequence[Commit]) -> list[ErrorCode]:
        has_partition = self._topics.has_partition
        return [
            ErrorCode.NONE if has_partition(commit[0], commit[1]) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for commit in commits
        ]

    def _check(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        supports_group_not_found: bool,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            if len(group_id) > self._settings.group_id_chars_max:
                return ErrorCode.INVALID_GROUP_ID
            if generation >= 0:
                return (
                    ErrorCode.GROUP_ID_NOT_FOUND if supports_group_not_found else ErrorCode.ILLEGAL_GENERATION
                )
            if len(self._groups) >= self._settings.groups_max or not self._budget.has_room_for(group_id):
                return ErrorCode.POLICY_VIOLATION
            return ErrorCode.NONE
        if generation < 0 and group.state is State.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            # A client that is not a member may commit only while the group has no members. TxnOffsetCommit is exempt,
            # because its old versions have no field for the member id.
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
        """Return the rows to store. For each commit that exceeds a limit, set its item in ``errors``."""
        limits = self._settings
        offsets = self._offsets
        now_ms = self._trusted_ms()
        expires_ms = min(now_ms + retention_ms, _FOREVER_MS) if retention_ms >= 0 else -1
        # If a request contains a partition twice, the last commit is stored.
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
            previous = (
                offsets.get(group_id, topic, partition)
                if transaction is None
                else pending.get(transaction, group_id, topic, partition)
            )
            added = 0 if previous is not None else 1 if transaction is None else _PENDING_WEIGHT
            added_bytes = text_bytes(text) - (0 if previous is None else text_bytes(previous.metadata))
            if (added and count + added > limits.offsets_max) or (
                added_bytes > 0 and size + added_bytes > limits.all_offset_metadata_bytes_max
            ):
                errors[index] = ErrorCode.POLICY_VIOLATION
                continue
            count += added
            size += added_bytes
            rows[topic, partition] = OffsetRow(
                topic, partition, offset, leader_epoch, text, now_ms, expires_ms
            )
        return list(rows.values())

    # -- fetch

    def fetch(self, group_id: str, topic: str, partition: int) -> OffsetRow | None:
        return self._offsets.get(group_id, topic, partition)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction can still change this offset."""
        return self._pending.has(group_id, topic, partition)

    def fetch_all(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRow]]:
        return self._offsets.of_group(group_id)

    # -- delete

    async def delete(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode | list[ErrorCode]:
        """Delete offsets. Returns one error code per partition, in order, or one for the whole request."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP
        errors = []
        deleted = []
        for topic, partition in partitions:
            if not self._topics.has_partition(topic, partition):
                errors.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif group.is_subscribed(topic):
                errors.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                errors.append(ErrorCode.NONE)
                if self._offsets.get(group_id, topic, partition) is not None:
                    deleted.append((topic, partition))
        if deleted:
            failure = await self._ledger.put(OffsetsDeleted(group_id, deleted))
            if failure is not None:
                return code_of_write_error(failure)
        return errors

    async def forget_topic(self, topic: str) -> None:
        """Delete all groups' offsets of a deleted topic, durably. Raises the error if the write fails.

        Writes an entry even if no group has offsets of the topic, because a commit can be in progress.
        """
        _raise(await self._ledger.put(TopicDeleted(topic)))

    async def forget_missing_topics(self) -> None:
        """Delete offsets of topics that do not exist. A crash during a topic's deletion leaves such offsets."""
        for topic in self._offsets.topics():
            if self._topics.id_of(topic) is None:
                await self.forget_topic(topic)

    # -- retention

    async def expire(self, now_ms: int) -> list[ExpiredOffset]:
        """Delete expired offsets, and idle groups without offsets, durably. Raises the error if a write fails.

        Skips groups that have unwritten entries or pending offsets of a transaction, because these can renew an expired
        offset.
        """
        expired: list[ExpiredOffset] = []
        writes: list[asyncio.Future[Exception | None]] = []
        checked_rows = 0
        for group in list(self._groups.values()):
            if checked_rows > _ROWS_PER_YIELD:
                checked_rows = 0
                await asyncio.sleep(0)
            if self._groups.get(group.id) is not group or not self._has_no_pending_changes(group.id):
                continue
            rows = list(self._offsets.rows(group.id))
            checked_rows += 1 + len(rows)
            expired_rows = [row for row in rows if self._is_expired(group, row, now_ms)]
            expired += [ExpiredOffset(group.id, row.topic, row.partition, row.offset) for row in expired_rows]
            if len(expired_rows) == len(rows) and self._is_idle(group, now_ms):
                writes.append(self._ledger.put(GroupDeleted(group.id)))
            elif expired_rows:
                partitions = [(row.topic, row.partition) for row in expired_rows]
                writes.append(self._ledger.put(OffsetsDeleted(group.id, partitions)))
        for write in writes:
            _raise(await write)
        return expired

    def _has_no_pending_changes(self, group_id: str) -> bool:
        return self._ledger.is_settled(group_id) and not self._pending.has_group(group_id)

    def _is_idle(self, group: Group, now_ms: int) -> bool:
        if group.state is not State.EMPTY or group.pending:
            return False
        return now_ms - group.since_ms >= self._settings.empty_group_retention_ms

    def _is_expired(self, group: Group, row: OffsetRow, now_ms: int) -> bool:
        if group.protocol_type is None:
            since_ms = row.committed_ms
        elif group.state is State.EMPTY:
            # Kafka uses only the time when the group became empty. If an administrator sets an offset a week later,
            # Kafka deletes the offset at the next cleanup. Headrace uses the later of both times, and so retains it.
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
    """Set the error for all commits that do not have an error yet."""
    return [existing or error for existing in errors]


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise failure
