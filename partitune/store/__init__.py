"""results.db: finished trials, durably. `Store` is the door."""

from partitune.store.migrations import OlderSchema
from partitune.store.records import StudyRecord, StudyState, StudyTerms
from partitune.store.store import SpecChanged, Store, check_study_name

__all__ = ["OlderSchema", "SpecChanged", "Store", "StudyRecord", "StudyState", "StudyTerms", "check_study_name"]
