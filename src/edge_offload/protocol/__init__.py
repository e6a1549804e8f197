"""What robot and server say to each other of the virtual device: messages, answers, payloads; used by both ends."""
