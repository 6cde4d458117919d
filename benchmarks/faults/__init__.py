"""A campaign of faults: signals, killed and frozen ranks, damaged files, random sequences of calls, mutants.

    python -m benchmarks.faults [LINE ...] [--short] [--out FOLDER]

Each line of the table is one kind of fault with the figure that it must show. The command ends with 1 if a case is not
as asked. A case is recorded as soon as it is over; a repeated command runs only the cases that have no record of the
same commit. With ``--short`` nothing is kept, and every case runs.
"""
