"""The version, alone in a file so that the build reads it without importing torch."""

__version__ = "0.2.0.dev0"
