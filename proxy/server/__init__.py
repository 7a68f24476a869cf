"""The client's side of HTTP: protocol, exchange, headers, paths, addresses, content codings, events."""
