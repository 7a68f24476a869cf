"""What a record is and how it is written."""
