"""The engine in virtual time: its scheduler, its pipeline and its clients, one module each."""
