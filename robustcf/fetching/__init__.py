"""Getting files: sources with checksums, downloads that verify, archives, places to look in."""
