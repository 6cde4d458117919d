"""The signature of `scipy.optimize.minimize`."""
