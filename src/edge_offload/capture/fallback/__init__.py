"""The virtual device in pure Python, for machines without a C++ compiler: a tensor subclass instead of native kernels.

It speaks the same language to the recorder and the server as the native device (``native/``), so every execution mode
works on it. It is slower per call, and refuses by name what a subclass cannot do: storages shared with other
libraries, changing a tensor's shape in place, TorchScript modules moved to the device.
"""
