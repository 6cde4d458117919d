"""Arrays, checks, sets, schedules and the other parts that every folder may use."""
