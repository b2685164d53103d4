"""Predictions beside what others measured and published."""
