"""Real traffic: the requests of a stock client, recorded between the client and a broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import cache

from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess

__all__ = ["recorded_frames"]


class _Recorder(threading.Thread):
    """Forwards bytes in both directions, and stores the requests as frames."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.frames: list[bytes] = []
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                broker = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._pass, args=(client, broker, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(broker, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        held = bytearray()
        with contextlib.suppress(OSError), source, target:
            while piece := source.recv(1 << 16):
                target.sendall(piece)
                if keep:
                    held += piece
                    while len(held) >= 4 and len(held) >= 4 + (size := int.from_bytes(held[:4], "big")):
                        self.frames.append(bytes(held[4 : 4 + size]))
                        del held[: 4 + size]

    def close(self) -> None:
        self._listening.close()


@cache
def recorded_frames() -> tuple[bytes, ...]:
    """Return requests of a producer, a group member and an admin client of librdkafka, recorded once per process."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

    with run_directory("recording", 0, in_memory=True) as home, BrokerProcess(home, forked=True) as broker:
        broker.start()
        recorder = _Recorder(broker.port)
        # Clients connect to the advertised address, which must be the recorder's.
        broker.stop()
        broker.options += ["--advertise", f"127.0.0.1:{recorder.port}"]
        broker.start()
        recorder.start()
        address: dict[str, str | int | float | bool] = {"bootstrap.servers": f"127.0.0.1:{recorder.port}"}
        admin = AdminClient(address)
        for future in admin.create_topics([NewTopic("recorded", 2, 1)]).values():
            future.result(10)
        for future in admin.describe_configs([ConfigResource(ResourceType.TOPIC, "recorded")]).values():
            future.result(10)
        producer = Producer({**address, "enable.idempotence": True, "compression.type": "lz4"})
        for number in range(50):
            producer.produce("recorded", b"value %d" % number, key=b"key")
        producer.flush(10)
        consumer = Consumer({**address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["recorded"])
        read = 0
        while read < 50:
            read += len(consumer.consume(50, 0.5))
        consumer.commit(asynchronous=False)
        consumer.close()
        recorder.close()
        return tuple(sorted(set(recorder.frames)))
