"""A search as a Ray job: what is shipped, how it is submitted and watched, how its results come home."""
