"""Every stock Kafka client works against the embedded broker exactly as against Apache Kafka.

Each test runs against both servers and states what must be observed; that both observe the same follows. Where the
two may rightly differ (a cluster's id, a directory's path, the size of a file), the test leaves the value out and
says why.
"""
