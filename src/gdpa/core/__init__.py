"""The mathematics of one point: problem, augmented Lagrangian, residuals, multipliers and certificate."""
