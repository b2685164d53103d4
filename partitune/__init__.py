"""partitune finds the pipeline partition and scheduler flags of an LLM server, and shows why.

The version lives here and nowhere else (hatchling reads it).
"""

__version__ = "0.1.0"
