"""What runs inside an engine's own processes: every file here stands alone and imports nothing of partitune."""
