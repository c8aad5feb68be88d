"""How far everything that reads the log is behind it, and how long until retention takes what is unread."""
