"""What would be done with requests and recorded sessions that somebody pastes: explained and replayed, never sent."""
