"""`concertina doctor`: checks of everything that a config names."""
