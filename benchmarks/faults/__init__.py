"""A campaign of faults: signals, killed and frozen ranks, damaged files, random sequences of calls, mutants.

    python -m benchmarks.faults [LINE ...] [--short] [--out FOLDER]

Each line of the table is one kind of fault with the figure that it must show. A case is recorded as soon as it is over;
a repeated command runs only the cases that have no record.
"""
