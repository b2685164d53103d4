"""vLLM, read in its source from 0.19 to 0.33: flags, rules, memory, scheduler, launch and readout."""
