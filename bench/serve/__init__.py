"""The server, measured: reads, fan-out, subscribers, own writes."""
