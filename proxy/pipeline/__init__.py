"""The way of a request: receive, prepare, forward, relay, report."""
