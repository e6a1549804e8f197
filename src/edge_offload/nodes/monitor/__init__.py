"""Nodes that watch a run: link, power, recorder, dashboard."""
