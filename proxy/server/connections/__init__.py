"""Clients' connections: how long they are kept, what they repeat, the bodies that come over them."""
