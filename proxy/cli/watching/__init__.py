"""`concertina tail` and `open`: what the running proxy does, and the way to its dashboard."""
