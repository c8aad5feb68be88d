"""The read side over HTTP: views and topics of an app, each answer with the position that it reflects."""
