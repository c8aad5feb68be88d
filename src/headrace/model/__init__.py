"""What an app declares: topics, flows, views and the shapes of their values. No I/O."""
