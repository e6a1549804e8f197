"""The per-frame decision: which mode a frame runs in, and whose frame goes to the server next."""
