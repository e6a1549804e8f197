"""The per-frame decision: which mode runs, and what happens when it cannot."""
