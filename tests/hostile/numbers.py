"""How many cases are tried where; the table in docs/promises.md tells the same numbers."""

FAST_CASES = 500  # in make check; of these, those of the readers are tried
SLOW_CASES = 2_500  # in make test
ALL_CASES = 100_000  # in make fuzz
