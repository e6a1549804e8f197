"""Ways to an executor: over the link, in a process of this machine, or in this process."""
