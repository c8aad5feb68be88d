"""The HTTP server of an app: it serves views and topics, and each response names the log position that it reflects."""
