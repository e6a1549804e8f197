"""Each copy, event and wait of an inference divided on a GPU: where it stands, and the same without it."""

NEVER = "return torch.cuda.Event(enable_timing=True)"
MUTATIONS = [
    ("lanes", "with torch.cuda.stream(self._compute):", "with contextlib.nullcontext():"),
    ("lanes", "self._compute.wait_event(event)", "pass"),
    ("lanes", "return self._compute.record_event(torch.cuda.Event(enable_timing=True))", NEVER),
    ("lanes", "made.record_stream(self._compute)", "pass"),
    ("lanes", "return made, self._upload.record_event()", "return made, torch.cuda.Event()"),
    ("lanes", "locked.copy_(rows)", "pass"),
    ("lanes", "to.copy_(locked, non_blocking=True)", "pass"),
    ("lanes", "            return self._upload.record_event()\n", "            return torch.cuda.Event()\n"),
    ("lanes", "self._download.wait_event(event)", "pass"),
    ("lanes", "locked.copy_(source, non_blocking=True)", "pass"),
    ("lanes", "copied = self._download.record_event()", "copied = torch.cuda.Event()"),
    ("lanes", "copied.synchronize()", "pass"),
    ("clocks", "return self._stream.record_event(torch.cuda.Event(enable_timing=True))", NEVER),
    ("clocks", "end.synchronize()", "pass"),
    ("device_half", "self._pending.append(event)", "pass"),
    ("device_half", "self._arrivals.setdefault(number, []).append(event)", "pass"),
    ("device_half", "self._lanes.compute_after([self._writable[number]])", "self._lanes.compute_after()"),
    ("device_half", "events.append(self._blocks[blocks - 1][1])", "pass"),
    ("device_half", "self._blocks[-1][1].synchronize()", "pass"),
]  # fmt: skip
