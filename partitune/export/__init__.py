"""From a trial to files that deploy it."""
