"""`concertina doctor`: whether what a config names is there, works and fits together."""
