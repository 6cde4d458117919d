"""The paper's applications as problems: Neyman-Pearson classification, budgeted networks and more."""
