"""What people and programs read: summaries, explanations, tables, progress."""
