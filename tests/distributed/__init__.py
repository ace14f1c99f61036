"""Several processes on one machine, started by torchrun."""
