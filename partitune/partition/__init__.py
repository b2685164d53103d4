"""Pure maths of the partition vector: reading it, what makes it legal, and the exact best one."""
