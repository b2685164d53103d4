"""What a database error means to the person who meets it.

Decision: SQLite's own result codes decide, not message texts; each class of code has one sentence that says what
happened to the trials and what to do. Everything leaves the store as a StoreError.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from partitune.errors import StoreError

#: Result code (or its prefix, https://sqlite.org/rescode.html) -> what it means and what to do.
_MEANING = {
    "SQLITE_NOTADB": "not an SQLite database. Give the results.db of a search, or another --db",
    "SQLITE_CORRUPT": "the database is damaged. Keep the file and save what is readable: "
    "sqlite3 FILE .recover | sqlite3 recovered.db",
    "SQLITE_BUSY": "locked by another program that writes to it. Close that program (a database browser, an Optuna "
    "worker), then resume",
    "SQLITE_LOCKED": "locked by another connection. Close the program that holds it, then resume",
    "SQLITE_FULL": "the disk is full. This trial was not stored, all earlier ones are. Free some space, then resume",
    "SQLITE_READONLY": "read-only. Make the file and its folder writable, or use another --db",
    "SQLITE_CANTOPEN": "cannot be opened. Check the rights of the file, of its folder, and of the -wal and -shm files "
    "beside it; a copy in a writable folder can always be read",
    "SQLITE_IOERR": "the disk reports an error or is full. All earlier trials are stored. Check the disk, then resume",
}


@contextmanager
def explained(database: str) -> Iterator[None]:
    """Turn what SQLAlchemy and sqlite3 raise inside the block into a StoreError about `database`."""
    try:
        yield
    except DBAPIError as error:
        raise StoreError(_message(database, error.orig)) from error
    except UnicodeDecodeError as error:
        # Raised while sqlite3 hands over a text, be it a cell or a name of the schema.
        raise StoreError(_damaged(database, error)) from error
    except sqlite3.Error as error:
        # Raised by a connect listener, which SQLAlchemy does not wrap.
        raise StoreError(_message(database, error)) from error
    except SQLAlchemyError as error:
        raise StoreError(f"{database}: {error}") from error


def _damaged(database: str, error: Exception) -> str:
    return f"{database}: {_MEANING['SQLITE_CORRUPT']} ({error})"


def _message(database: str, error: BaseException | None) -> str:
    code = getattr(error, "sqlite_errorname", "")
    text = " ".join(str(error).split())
    for prefix, meaning in _MEANING.items():
        if code.startswith(prefix):
            return f"{database}: {meaning} ({text})"
    return f"{database}: the database answers: {text}"
