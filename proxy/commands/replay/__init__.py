"""`concertina replay`: recorded conversations played through the policies."""
