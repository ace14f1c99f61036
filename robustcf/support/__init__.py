"""What every room stands on: checks, tables of names, files, randomness, the runtime."""
