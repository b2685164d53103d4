"""SGLang, read in its source up to 0.5.23: flags, rules, memory, scheduler, launch and readout."""
