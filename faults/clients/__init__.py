"""The stock Kafka clients behind one interface, so that one scenario can run with every client against every server.

An adapter only translates: it calls the client as its users do, converts the client's error to ``Refused`` with Kafka's
error code, and returns plain values. It never retries, and never waits longer than the client itself.
"""

from faults.clients.port import Admin, Client, ConsumedRecord, Consumer, Offsets, Partition, Record

__all__ = ["Admin", "Client", "ConsumedRecord", "Consumer", "Offsets", "Partition", "Record"]
