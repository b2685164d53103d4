"""How one candidate is measured: the Driver protocol, and the one place that knows every driver by name."""
