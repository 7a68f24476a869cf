"""The stages of a request: receive, prepare, send, relay, report."""
