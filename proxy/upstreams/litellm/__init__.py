"""Upstreams that speak another protocol, translated by litellm."""
