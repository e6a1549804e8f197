"""A real browser to look at pages."""

from tests.dashboard.conftest import browser

__all__ = ["browser"]
