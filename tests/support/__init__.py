"""What several test suites share: real servers to talk to, and the stock clients that talk to them."""
