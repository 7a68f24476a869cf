"""Everything that does I/O: `app` starts and ends it, `wiring` builds its parts; `errors` and `lru` serve them all."""
