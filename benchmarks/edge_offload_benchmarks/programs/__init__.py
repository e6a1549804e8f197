"""A corpus of other people's programs: each plainly and in every mode, bits and round trips compared.

``catalogue`` says what a program is, ``vision`` … ``loops`` hold them, ``child`` runs one in a process of its own,
``compare`` puts the runs of one program side by side.
"""
