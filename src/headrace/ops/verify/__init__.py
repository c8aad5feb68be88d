"""Verification: proves that the served rows follow from the log. It shares no code with followers and stores."""
