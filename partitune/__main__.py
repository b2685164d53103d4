"""`python -m partitune` is the `partitune` command."""

from partitune.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
