"""Single Kafka requests over a plain socket, for requests that librdkafka does not offer.

Only plaintext connections are supported. For a cluster that needs TLS or a login, the command fails with an error.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from headrace.cli.errors import BrokerRefused, BrokerUnreachable, CliError
from headrace.cli.reach import check_reachable, parse_addresses, why_unreachable
from headrace.cli.session import Session
from headrace.wire import Api, ErrorCode, WireError, decode_response, encode_request
from headrace.wire import messages as m

__all__ = ["advertised_brokers", "error_name", "find_coordinator", "request"]

TIMEOUT_S = 15.0
ADVERTISED_TIMEOUT_S = 3.0
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
_GROUP = 0


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def request(host: str, port: int, api: Api, version: int, body: Any, *, timeout_s: float = TIMEOUT_S) -> Any:
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(encode_request(api, version, 1, "headrace", body))
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < size <= RESPONSE_BYTES_MAX:
                raise BrokerUnreachable(f"{host}:{port} does not respond like a Kafka broker")
            _, response = decode_response(api, version, _receive(connection, size))
    except (OSError, EOFError, WireError) as error:
        raise BrokerUnreachable(f"{host}:{port}: no valid response to {api.title}: {error}") from None
    return response


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 16))
        if not chunk:
            raise EOFError("the connection was closed")
        data += chunk
    return bytes(data)


def advertised_brokers(session: Session) -> list[tuple[str, int]]:
    """Return the addresses that the brokers advertise; empty if no bootstrap address responds over plaintext."""
    if not _is_plaintext(session):
        return []
    wait_s = min(ADVERTISED_TIMEOUT_S, session.timeout_s)
    for host, port in parse_addresses(session.bootstrap):
        try:
            response = request(host, port, Api.METADATA, 9, m.MetadataRequest(topics=[]), timeout_s=wait_s)
        except BrokerUnreachable:
            continue
        return [(broker.host, broker.port) for broker in response.brokers]
    return []


def _is_plaintext(session: Session) -> bool:
    return session.properties.get("security.protocol", "plaintext").lower() == "plaintext"


def find_coordinator(session: Session, group: str) -> tuple[str, int]:
    """Return the address of the group's coordinator."""
    if not _is_plaintext(session):
        raise CliError(
            f"this command supports plaintext connections only, not security.protocol="
            f"{session.properties['security.protocol']}",
            hint="use Apache Kafka's kafka-consumer-groups.sh --delete-offsets",
        )
    check_reachable(session.bootstrap)
    for host, port in parse_addresses(session.bootstrap):
        if why_unreachable(host, port) is not None:
            continue
        body = m.FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=[group])
        coordinator = request(host, port, Api.FIND_COORDINATOR, 4, body).coordinators[0]
        if coordinator.error_code:
            name = error_name(coordinator.error_code)
            raise BrokerRefused(f"finding the coordinator of group {group!r}: {name}", name=name)
        return coordinator.host, coordinator.port
    raise BrokerUnreachable(f"no broker responds at {session.bootstrap}")
