"""Applications: whole problems of machine learning as constrained optimization, each with its ground truth."""
