"""What an engine does, refuses and says: one room an engine, all behind the same small protocols."""
