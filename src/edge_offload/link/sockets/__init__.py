"""What connections need of the operating system: ports, wake-ups, counts of bytes, and few log lines."""
