"""Model replicas, sessions, quotas and admission on the machine with the GPU."""
