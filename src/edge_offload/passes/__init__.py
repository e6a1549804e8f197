"""From one operator sequence to an equal one: constants folded, fused operators expanded, views made explicit."""
