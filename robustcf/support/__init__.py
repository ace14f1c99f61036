"""What every subpackage stands on: checks, tables of names, files, randomness, the runtime."""
