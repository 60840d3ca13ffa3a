"""The version of the project: a module of its own, which imports nothing."""

__version__ = "0.1.0"
