"""results.db: finished trials, durably. `Store` is the door."""

from partitune.store.records import StudyRecord, StudyState, TrialRecord
from partitune.store.store import SpecChanged, Store, check_study_name

__all__ = ["SpecChanged", "Store", "StudyRecord", "StudyState", "TrialRecord", "check_study_name"]
