"""The loop, what it proposes from, and how a study begins, goes on and ends."""
