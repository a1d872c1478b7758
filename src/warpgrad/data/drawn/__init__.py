"""Alphabets that a program invents and draws, for when no data set is on disk."""
