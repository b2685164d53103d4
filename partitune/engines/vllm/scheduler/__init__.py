"""vLLM's scheduler in virtual time: what its engine core would do with a load, step for step."""
