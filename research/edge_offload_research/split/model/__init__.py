"""Plans that are run against the unsplit network, and pictures of plans."""
