"""One session of the virtual device: storages, compiled programs, speculation with an undo log, and its process."""
