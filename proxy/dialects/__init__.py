"""Translation between request bodies and the values of the policies. Unchanged items keep the client's bytes."""
