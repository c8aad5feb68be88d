"""What handlers ask about leader epochs: whether a client's view is current, and which epoch wrote an offset.

The epoch of a partition is the number of the broker's run, so it rises with every start. A client that says
which epoch it believes in is told when it is behind, and refreshes its metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.broker.refusal import Refusal
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.topic import Topic

__all__ = ["check_epoch", "epoch_at", "leader_epochs"]

_ANY = -1


class HasEpochs(Protocol):
    @property
    def leader_epoch(self) -> int: ...
    def end_of_epoch(self, epoch: int) -> tuple[int, int]: ...


def check_epoch(partition: HasEpochs, believed: int) -> None:
    """``Refusal`` unless ``believed`` is the partition's epoch, or -1 for a client that does not say."""
    if believed in (_ANY, partition.leader_epoch):
        return
    if believed < partition.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH)
    raise Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH)


def epoch_at(partition: HasEpochs, offset: int) -> int:
    """The epoch that wrote ``offset``: the first one that ended behind it. The current one where nothing is
    there yet.
    """
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
    """Of every partition; -1 for one that nobody leads, because its files cannot be used."""
    offline = broker.partitions.offline
    epochs = []
    for index in range(topic.partitions):
        partition = broker.partition(topic.name, index)
        epochs.append(-1 if partition is None or (topic.name, index) in offline else partition.leader_epoch)
    return tuple(epochs)
