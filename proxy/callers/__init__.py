"""Who asks, and for what: tenants, keys and their use, admission, session labels, and a request's line and headers."""
