"""Does a change of units change the answer? gdpa.minimize beside SLSQP and trust-constr."""
