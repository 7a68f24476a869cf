"""config.yaml: read, checked, explained where it is wrong, and read again while the proxy runs."""
