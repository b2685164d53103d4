"""Machines: processes started on them, watched, and ended with proof."""
