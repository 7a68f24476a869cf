"""What becomes of the messages of a request, and why: told to those who ask or look."""
