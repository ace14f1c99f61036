"""Files, read within limits and written whole.

- ``limits``: every limit; ``schema``: what a JSON file must hold; ``text``: text safe to show.
- ``reading``: plain files, JSON, packed text, arrays, archives.
- ``files``: writing; arrays, tensors, checkpoints; ``temporary``: temporary files and locks.
- ``fetching``: manifests, search folders, downloads.
- ``sandbox``, ``foreign``, ``parquet``, ``unpickling``: strangers' files, in a child process.
- ``plots``, ``progress``: pictures and progress bars.
"""
