"""Each copy, event and wait of an inference divided on a GPU: where it stands, and the same without it."""

NEVER = "return torch.cuda.Event(enable_timing=True)"
MUTATIONS = [
    ("lanes", "with torch.cuda.stream(self._compute):", "with contextlib.nullcontext():"),
    ("lanes", "self._compute.wait_event(event)", "pass"),
    ("lanes", "return self._compute.record_event(torch.cuda.Event(enable_timing=True))", NEVER),
    ("lanes", "made.record_stream(self._compute)", "pass"),
    ("lanes", "return made, self._there.record_event()", "return made, torch.cuda.Event()"),
    ("lanes", "locked.copy_(rows)", "pass"),
    ("lanes", "to.copy_(locked, non_blocking=True)", "pass"),
    ("lanes", "            return self._there.record_event()\n", "            return torch.cuda.Event()\n"),
    ("lanes", "self._back.wait_event(event)", "pass"),
    ("lanes", "locked.copy_(found, non_blocking=True)", "pass"),
    ("lanes", "come = self._back.record_event()", "come = torch.cuda.Event()"),
    ("lanes", "come.synchronize()", "pass"),
    ("clocks", "return self._stream.record_event(torch.cuda.Event(enable_timing=True))", NEVER),
    ("clocks", "ended.synchronize()", "pass"),
    ("device_half", "self._behind.append(event)", "pass"),
    ("device_half", "self._came.setdefault(number, []).append(event)", "pass"),
    ("device_half", "self._lanes.computing([self._writable[number]])", "self._lanes.computing()"),
    ("device_half", "behind.append(self._blocks[blocks - 1][1])", "pass"),
    ("device_half", "self._blocks[-1][1].synchronize()", "pass"),
]  # fmt: skip
