"""The version: here and nowhere else (hatchling reads it)."""

from __future__ import annotations

__version__ = "0.1.0"
