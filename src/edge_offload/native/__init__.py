"""C++ and C: the one place where libraries are built, named by what they depend on, and kept."""
