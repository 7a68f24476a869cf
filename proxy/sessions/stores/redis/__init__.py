"""Redis and Valkey: a single server, Sentinels, a cluster."""
