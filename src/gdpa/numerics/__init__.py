"""Small dense algebra, limited-memory BFGS and quadratic programs, shared by methods and certificates."""
