"""Times of kernels as others measured them: which table stands for which part of a layer, and how it is read."""
