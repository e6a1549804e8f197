"""One thread and fixed seeds, as for the split that is installed."""

from tests.split.conftest import _one_thread  # noqa: F401
