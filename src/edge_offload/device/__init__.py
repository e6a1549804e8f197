"""The virtual CUDA device in the program's own process: how it is put there, torch.cuda, where calls go."""
