"""Promises of accuracy: ``service`` answers robots, ``scheduler`` runs ``batches`` in time, ``ages`` of results."""
