"""What would be done with requests that somebody pastes: explained, never sent."""
