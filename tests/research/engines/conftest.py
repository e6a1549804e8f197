"""A cache of the test's own, one compute thread, and the engines that are here."""

from tests.execute.engines.conftest import cache, engine

__all__ = ["cache", "engine"]
