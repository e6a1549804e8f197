"""Mode ``server``: whole models, opened once and asked per frame."""
