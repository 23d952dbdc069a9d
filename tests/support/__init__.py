"""Helpers of the test suite: pinned assets, the reference engine, F32 twins, tiny models, fidelity measures."""
