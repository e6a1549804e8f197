"""What robot and server say to each other of the virtual device (messages, answers, payloads) and of promises."""
