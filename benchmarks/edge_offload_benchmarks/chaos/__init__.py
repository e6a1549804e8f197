"""Scripted faults on the real system of two processes, applied from outside, and the verdict on what came out."""
