"""The web UI for operators, which shows the state of an app. The server of the views also serves the web UI."""
