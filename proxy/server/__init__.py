"""The client's side of HTTP: protocol, exchange, headers, addresses, content codings, events."""
