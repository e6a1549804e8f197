"""Running models and operator sequences: the same code on robot and server."""
