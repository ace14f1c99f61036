"""Files, read within limits and written whole.

- ``limits``: every limit; ``schema``: what a JSON file must hold; ``text``: text safe to show.
- ``reading``: plain files, JSON, packed text, arrays, archives.
- ``files``: writing; arrays, tensors, checkpoints; ``temporary``: temporary files and locks.
- ``fetching``: manifests, search folders, downloads.
- ``sandbox``, ``foreign``, ``unpickling``: strangers' files, parsed in a limited child process.
- ``plots``, ``progress``: pictures and progress bars.
"""
