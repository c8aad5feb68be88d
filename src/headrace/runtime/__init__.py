"""Everything that an app needs, run together on one machine: the log, the flows, the followers."""
