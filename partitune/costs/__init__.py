"""Stage times and stage memory of a batch."""
