"""Storage of conversations through `Sessions`, and of locks, figures, histories and replicas, over any store."""
