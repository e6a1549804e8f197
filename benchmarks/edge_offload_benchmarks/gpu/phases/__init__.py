"""The phases of ``scripts/gpu run``, a module each: ``run(phase)`` measures and records."""
