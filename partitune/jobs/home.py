"""Results that come home from a job's log into a database of the user's own.

Decision: what comes home is recorded as a search here would have recorded it, so the database is an ordinary one: it is
shown, compared, exported and resumed. Bringing home twice changes nothing, and a study that was started with another
spec is never mixed with it.
"""

from __future__ import annotations

from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.errors import ClusterError
from partitune.jobs.messages import Decoder, EndMessage
from partitune.store import Store, StudyState, StudyTerms


class Home:
    """Takes the lines of one job's log in order."""

    def __init__(self, store: Store | None = None) -> None:
        """Record into `store`; None only tells results and text apart."""
        self._store = store
        self._decoder = Decoder()
        self._open: set[str] = set()  # studies whose end has not come
        self.trials: dict[str, int] = {}  # study -> trials brought home

    def take(self, line: str) -> str:
        """Record what `line` carries; the text of it that is for people.

        Raises:
            ClusterError: a damaged line.
            StoreError: the database; also a study of that name that means something else.
        """
        text, message = self._decoder.feed(line)
        if message is None or self._store is None:
            return text
        match message:
            case StudyTerms():
                self.trials[message.name] = 0
                self._open.add(message.name)
                known = message.name in {stored.name for stored in self._store.studies()}
                self._store.resume(message) if known else self._store.create_study(message)
            case _ if message.study not in self.trials:
                raise ClusterError(
                    f"the job's log holds a trial of the study {message.study!r} before the study itself"
                )
            case Screened() | Repeat() | Trial():
                self._store.record(message)
                self.trials[message.study] += isinstance(message, Trial)
            case EndMessage():
                ended = StudyState.FINISHED if message.state is StudyState.FINISHED else StudyState.INTERRUPTED
                self._store.finish(message.study, ended)
                self._open.discard(message.study)
        return text

    def leave(self) -> None:
        """No more lines: a study whose end did not come is interrupted. Raises StoreError."""
        while self._store is not None and self._open:
            self._store.finish(self._open.pop(), StudyState.INTERRUPTED)
