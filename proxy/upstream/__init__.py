"""Where requests go: routes, the HTTP client, and what is asked of upstreams besides."""
