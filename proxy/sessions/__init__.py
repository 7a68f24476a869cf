"""What is kept over any store: of conversations, all by way of `Sessions`; locks, figures, histories, replicas."""
