"""What the proxy reports of itself: events, and the hooks that write the log and count metrics."""
