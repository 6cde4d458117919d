"""Small dense algebra, limited-memory BFGS and quadratic programs: what methods and certificates share."""
