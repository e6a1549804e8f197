"""The virtual CUDA device, the recorder and the operator sequence search."""
