"""Upstreams: routes, the HTTP client, calls to summarizers, lookups of models' windows."""
