"""Files, read within limits and written whole; fetching, pictures, progress."""
