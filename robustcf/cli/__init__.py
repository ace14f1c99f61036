"""The command line: one command, one function. Heavy imports live inside the functions."""
