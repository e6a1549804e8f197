"""C++ and C: the one place where libraries are named, built, kept by what they depend on, and loaded."""
