"""What an operator asks of a running app. ``verify``: is what is served what the log says?"""
