"""PyTorch's own operator samples (``op_db``), run on the virtual device and on the CPU, compared bit by bit.

The samples come with torch and were written by neither side. Per entry and mode the verdict is that of its worst
sample: *wrong* (another result, another error, a crash), *refused* (a clear error that names what is unsupported), or
*passed*. A few entries are *excluded*, each with a reason (:mod:`.exclusions`).

* :mod:`.judge`: one entry, inside a process that has the virtual device
* :mod:`.child`: that process, which is told entries on its standard input
* :mod:`.run`: starts such processes, survives their crashes, keeps a journal
* :mod:`.report`: totals, table, page
"""
