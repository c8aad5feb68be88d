"""The HTTP server: connections, requests, tokens, routes and their documentation."""
