"""The studies: data, configurations, runner, records, figures and report."""
