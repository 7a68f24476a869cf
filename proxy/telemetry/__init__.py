"""Events of the proxy, and the hooks that log, count and trace them."""
