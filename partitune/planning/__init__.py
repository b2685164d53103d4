"""From a resolved search space to partitions worth trying, in closed form and without a simulation."""
