"""The stock clients behind one face, so that one scenario runs with each of them against each server.

An adapter only translates: it calls the client as its users do, turns the client's own error into ``Refused`` with
Kafka's number, and gives back plain values. It neither retries nor waits for more than the client itself does.
"""

from tests.support.clients.face import Admin, Client, Consumer, Offsets, Partition, Record, Seen

__all__ = ["Admin", "Client", "Consumer", "Offsets", "Partition", "Record", "Seen"]
