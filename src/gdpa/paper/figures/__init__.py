"""Figures of the experiments: one function per file, from records to a `Chart`, drawn by matplotlib and plotly."""
