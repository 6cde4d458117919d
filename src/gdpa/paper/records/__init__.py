"""Records of runs and where they come from."""
