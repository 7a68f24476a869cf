"""Bytes of a request to what the policies know, and back with the client's own bytes."""
