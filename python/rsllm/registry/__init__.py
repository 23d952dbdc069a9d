"""Registries: fetching models from them and giving models to them.

===================  =================================================================================
`pull.py`            a model from its registry, a mirror, or hf.co
`push.py`            a model to its registry
`sources.py`         models from elsewhere: packages of a package index, files
`settings.py`        what is allowed, and how patient to be
`endpoints.py`       where a name may lead
`source.py`          the places that have one model, asked in order
`client.py`          requests: tokens, redirects, limits
`auth.py`, `keys.py` signing in with the user's key
`addresses.py`       which addresses may be reached
`transport.py`       connections that go to the address that was checked
`transfer.py`        one blob, from parts to its name
`fetch.py`           the requests for its parts
`patience.py`        what is asked again, and how often
`parts.py`           the parts on disk, in Ollama's format
`disk.py`            writing and hashing
`sharing.py`         one download for all who want it
`upload.py`          one blob, the other way
`layers.py`          the blobs of one model, those that are missing
`hub.py`, `split.py` split models of hf.co
`created.py`         models made of files that have come
===================  =================================================================================

What comes from a registry is checked before it is believed, and verified before it is kept.
"""
