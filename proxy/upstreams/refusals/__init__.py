"""Errors of upstreams: an overflow and the limit it states, a refused output limit, a refused form."""
