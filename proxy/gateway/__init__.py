"""The straight line of a request: receive, prepare, forward, relay, report."""
