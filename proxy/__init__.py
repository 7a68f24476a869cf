"""The proxy: everything that does I/O."""
