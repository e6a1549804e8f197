"""Training SCONet: crops of scenes, loss, a resumable trainer, and the evaluation against baselines."""
