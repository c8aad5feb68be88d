"""Leader epochs: checks whether a client's epoch is current, and finds the epoch that wrote an offset.

The leader epoch of a partition is the number of earlier starts of the broker, so it increases with every start. A
client that sends an old epoch gets an error and refreshes its metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.broker.refusal import Refusal
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topics.topic import Topic

__all__ = ["check_epoch", "epoch_at", "leader_epochs"]

_NO_EPOCH = -1


class HasEpochs(Protocol):
    @property
    def leader_epoch(self) -> int: ...
    def end_of_epoch(self, epoch: int) -> tuple[int, int]: ...


def check_epoch(partition: HasEpochs, epoch: int) -> None:
    """Raise ``Refusal`` unless ``epoch`` is the partition's epoch, or -1 (the client sent no epoch)."""
    if epoch in (_NO_EPOCH, partition.leader_epoch):
        return
    if epoch < partition.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH)
    raise Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH)


def epoch_at(partition: HasEpochs, offset: int) -> int:
    """Return the epoch that wrote ``offset``, or the current epoch if no record has this offset yet."""
    first, last = 0, partition.leader_epoch
    while first < last:
        middle = (first + last) // 2
        _, end = partition.end_of_epoch(middle)
        if end > offset:
            last = middle
        else:
            first = middle + 1
    return first


def leader_epochs(broker: Broker, topic: Topic) -> tuple[int, ...]:
    """Return the epoch of every partition, or -1 if the partition is offline."""
    offline = broker.partitions.offline
    epochs = []
    for index in range(topic.partitions):
        partition = broker.partition(topic.name, index)
        epochs.append(-1 if partition is None or (topic.name, index) in offline else partition.leader_epoch)
    return tuple(epochs)
