"""Plans that are run on one machine, the link emulated."""
