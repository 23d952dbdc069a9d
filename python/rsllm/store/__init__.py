"""The model store: names, manifests and blobs on disk, in the layout that Ollama reads and writes.

===============  =====================================================================================
`name.py`        `[host/][namespace/]model[:tag]`, with its defaults
`digest.py`      the one type that turns the text `sha256:…` into a file name
`manifest.py`    what a model consists of, kept byte for byte
`store.py`       the folder: finding, writing, copying, deleting, pruning
`adding.py`      what is being added now, so that nobody deletes it meanwhile
`model.py`       one model of the store, its parts read when asked for
`files.py`       files that are there whole or not at all
`check.py`       whether all that is there is what it says it is
`progress.py`    how long work tells of itself
===============  =====================================================================================

Nothing here speaks HTTP, and nothing here runs a model.
"""
