"""What an engine says, read: its logs, its metrics page, its answers, the results of its benchmark."""
