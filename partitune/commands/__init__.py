"""The commands: arguments in, one function called, figures out. The only place besides `cli.py` that prints."""
