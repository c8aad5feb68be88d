"""One question to a broker in the protocol itself, for the few that the client library has no call for.

Plain connections only: a cluster that wants TLS or a login gets a clear no, instead of half an implementation of both.
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

__all__ = ["advertised_brokers", "ask", "find_coordinator", "name_of"]

TIMEOUT_S = 15.0
ADVERTISED_TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 64 * 1024 * 1024
_GROUP = 0


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def ask(host: str, port: int, api: Api, version: int, request: Any, *, timeout_s: float = TIMEOUT_S) -> Any:
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(encode_request(api, version, 1, "headrace", request))
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < size <= ANSWER_BYTES_MAX:
                raise BrokerUnreachable(f"{host}:{port} does not answer as a Kafka broker would")
            _, answer = decode_response(api, version, _receive(connection, size))
    except (OSError, EOFError, WireError) as error:
        raise BrokerUnreachable(f"{host}:{port} gave no usable answer to {api.title}: {error}") from None
    return answer


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 16))
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)


def advertised_brokers(session: Session) -> list[tuple[str, int]]:
    """Where the brokers say that they are; nothing if none of the addresses answers in plain Kafka."""
    if not _is_plain(session):
        return []
    wait_s = min(ADVERTISED_TIMEOUT_S, session.timeout_s)
    for host, port in parse_addresses(session.bootstrap):
        try:
            answer = ask(host, port, Api.METADATA, 9, m.MetadataRequest(topics=[]), timeout_s=wait_s)
        except BrokerUnreachable:
            continue
        return [(broker.host, broker.port) for broker in answer.brokers]
    return []


def _is_plain(session: Session) -> bool:
    return session.properties.get("security.protocol", "plaintext").lower() == "plaintext"


def find_coordinator(session: Session, group: str) -> tuple[str, int]:
    """Where the broker is that looks after a group."""
    if not _is_plain(session):
        raise CliError(
            "this command speaks plain connections only, and security.protocol asks for another",
            hint="Apache Kafka's own kafka-consumer-groups.sh --delete-offsets can do it",
        )
    check_reachable(session.bootstrap)
    for host, port in parse_addresses(session.bootstrap):
        if why_unreachable(host, port) is not None:
            continue
        request = m.FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=[group])
        answer = ask(host, port, Api.FIND_COORDINATOR, 4, request).coordinators[0]
        if answer.error_code:
            name = name_of(answer.error_code)
            raise BrokerRefused(f"finding the coordinator of group {group!r}: {name}", name=name)
        return answer.host, answer.port
    raise BrokerUnreachable(f"no broker answers at {session.bootstrap}")
