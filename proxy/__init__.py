"""Everything that does I/O: `app` starts and ends it, `wiring` builds its parts; `errors`, `lru` and `memory` serve them all."""
