"""What to try next: one protocol, one sampler behind it, the fixed first candidates in front."""
