"""The node that decides where networks run."""
