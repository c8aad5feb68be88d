"""What clients may ask of a broker at the most; units are in the names."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.records import RecordLimits

__all__ = ["BrokerLimits"]


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    #: ``socket.request.max.bytes``
    frame_bytes_max: int = 100 << 20
    #: ``fetch.max.bytes`` of the broker: one answer, however much a client asks for
    fetch_bytes_max: int = 55 << 20
    #: ``max.connections``
    connections_max: int = 10_000
    #: ``connections.max.idle.ms``
    idle_ms_max: int = 600_000
    # : Requests of one connection that are answered out of hand, so that the answers wait for the disk
    # together.
    in_flight_max: int = 64
    #: Bytes that one connection may have sent ahead of what is being handled, one frame aside.
    backlog_bytes_max: int = 1 << 20
    #: What one batch may unpack to. Nobody else is served while its records are walked.
    records: RecordLimits = field(
        default_factory=lambda: RecordLimits(unpacked_bytes_max=128 << 20, records_max=1_000_000)
    )
