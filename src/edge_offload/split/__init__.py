"""Locality rules, partition plans, cost model, planners and the two-sided runtime."""
