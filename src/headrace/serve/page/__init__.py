"""The operator's page: what an app is doing, in a browser, from the same server that serves its views."""
