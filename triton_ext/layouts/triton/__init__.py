"""Triton's own answer: its layout objects, its converter, and where a release of it is wrong."""
