"""The virtual devices of programs: a session and an executor process for each."""
