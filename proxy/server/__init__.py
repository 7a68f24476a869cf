"""The client's side of HTTP: the protocol, one exchange, headers, paths, codings and events."""
