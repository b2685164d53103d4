"""The Ray cluster that a search runs on: reached, watched, and what a candidate reserves of it."""
