"""GPUs, links and where each stage stands."""
