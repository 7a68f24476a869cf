"""Upstreams with another protocol, translated by litellm."""
