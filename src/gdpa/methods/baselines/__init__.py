"""Methods from other papers, one per file."""
