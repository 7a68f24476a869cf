"""What tool calls came to, read without a model: outcomes, file changes, attempts, what runs, plans."""
