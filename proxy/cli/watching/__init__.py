"""`concertina tail` and `open`: the running proxy's requests, and the link to its dashboard."""
