"""What is kept of conversations, over any store: checkpoints, lineages, the index, erasures, locks."""
