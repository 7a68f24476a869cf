"""The I/O of Concertina: `app` runs it, `wiring` builds it, and all parts use `errors`, `lru` and `memory`."""
