"""What is kept of a database that was removed or replaced while a search wrote to it.

Decision: the trials are still in the file that is open, so they are written to a new one, beside its former place or,
where that is gone as well, in the folder of temporary files. What stands there now is somebody else's and is not
touched.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from contextlib import closing
from pathlib import Path

from sqlalchemy import Engine

from partitune.errors import StoreError
from partitune.spec.own_file import own_file
from partitune.store.connection import explained

_NOT_KEPT = "What was stored in it could not be kept"
#: In place of `keep`, where no connection to the file is open that was taken away.
NOT_OPEN = f"{_NOT_KEPT}: no connection to it is left"


def keep(engine: Engine, path: Path) -> str:
    """Write what `engine` has open to a new file, `path` with a number, and say in a sentence what was kept."""
    fault = ""
    for folder in (path.parent, Path(tempfile.gettempdir())):
        names = (folder / f"{path.name}.kept-{number}" for number in itertools.count(1))
        kept = next(name for name in names if not os.path.lexists(name))
        try:
            trials = _write(engine, kept)
        except (OSError, StoreError) as error:
            kept.unlink(missing_ok=True)
            fault = f"{error.strerror}: {kept}" if isinstance(error, OSError) else str(error)
        else:
            return f"All {trials} trials stored before are kept in {kept}: move it back and resume. No other was stored"
    return f"{_NOT_KEPT}: {fault}"


def _write(engine: Engine, kept: Path) -> int:
    """Returns the number of trials."""
    with explained(str(kept)), closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        (trials,) = cursor.execute("SELECT count(*) FROM partitune_trials").fetchone()
        cursor.execute("VACUUM INTO ?", (str(own_file(kept)),))
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or whoever opens what stands there now reads ours into it
    return int(trials)
