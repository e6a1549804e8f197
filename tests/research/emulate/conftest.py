"""Fixtures of the tests of the link, for the emulator in front of it."""

from tests.link.conftest import keys  # noqa: F401
