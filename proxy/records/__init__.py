"""What is kept over any store: checkpoints, lineages, the index, erasures, locks; figures, trails, and who serves."""
