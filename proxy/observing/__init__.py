"""What the proxy says of itself: the log and the metrics."""
