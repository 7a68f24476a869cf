"""Everything that does I/O: `app` starts and ends it, `wiring` builds it; `errors`, `lru` and `memory` serve all."""
