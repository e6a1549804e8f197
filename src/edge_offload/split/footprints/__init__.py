"""Which input rows an operator's output rows need: one rule per kind of operator."""
