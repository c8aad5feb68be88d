"""The declarations of an app: topics, flows, views and the schemas of their values. No I/O."""
