"""Where candidates run: in this process, or on Ray workers. One protocol, one contract test."""
