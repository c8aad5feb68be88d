"""Every stock Kafka client works against the embedded broker exactly as against Apache Kafka.

Each test runs against both servers with the same expectations, so both must behave in the same way. Where the two may
differ (a cluster's id, a directory's path, the size of a file), the test omits the value and states why.
"""
