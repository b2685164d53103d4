"""A third engine, as small as the protocols allow: what docs/adding-an-engine.md asks for, and nothing else.

`toy/` is the folder that is put under `partitune/engines/`; `program.py` is the engine itself, which nobody imports.
"""
