"""What the measured trials say: the Pareto front, its size, and the best against the default."""
