"""What no engine owns of a run in virtual time: requests, clients, figures, timelines."""
