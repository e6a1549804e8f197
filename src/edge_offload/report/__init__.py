"""Report of a recorded run: columns of its records, a summary, and one self-contained HTML page."""
