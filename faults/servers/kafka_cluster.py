"""A real Apache Kafka with three nodes, each a broker and a controller. The replication factor is 3."""

from __future__ import annotations

from pathlib import Path

from faults.servers.apache_kafka import start_node
from faults.servers.server import Server, free_port

__all__ = ["KafkaCluster"]

_NODES = (1, 2, 3)


class KafkaCluster:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports = {node: free_port() for node in _NODES}
        self._controllers = {node: free_port() for node in _NODES}
        self.nodes: dict[int, Server] = {}
        for node in _NODES:
            self.start(node)
        for server in self.nodes.values():
            server.wait_until_it_answers()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def start(self, node: int) -> None:
        self.nodes[node] = start_node(self._home / f"node{node}", self._ports[node], self._properties(node))

    def kill(self, node: int) -> None:
        self.nodes.pop(node).kill()

    def close(self) -> None:
        for server in self.nodes.values():
            server.kill()

    def _properties(self, node: int) -> dict[str, str]:
        port, controller = self._ports[node], self._controllers[node]
        voters = ",".join(f"{node}@127.0.0.1:{at}" for node, at in self._controllers.items())
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self._home / f"node{node}" / "data"),
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "transaction.state.log.num.partitions": "3",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "4194304",
        }
