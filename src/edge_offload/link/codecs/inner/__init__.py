"""Inner loops of the codecs: compiled, and the same in numpy."""
