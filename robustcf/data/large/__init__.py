"""Data larger than memory: prepared out of core, and used over memory maps."""
