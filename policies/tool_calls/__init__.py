"""Results of tool calls, parsed without a model: outcomes, file changes, attempts, running work, plans."""
