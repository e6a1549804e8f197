"""Messages between robot and server: those of the virtual device (requests, answers, payloads) and of promises."""
