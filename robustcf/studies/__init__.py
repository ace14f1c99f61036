"""Studies: statistics, comparisons, pictures, and sweeps of many runs."""
