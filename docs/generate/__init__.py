"""Writes the pages of the documentation that follow from the code and from recorded results (``scripts/docs``)."""
