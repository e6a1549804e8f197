"""Looking back at a run: columns of its records, a summary of them, and one self-contained HTML page."""
