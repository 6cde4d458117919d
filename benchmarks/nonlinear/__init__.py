"""Nonlinear programs of the S2MPJ collection: AdaptiveGDPA beside the solvers people would pick."""
