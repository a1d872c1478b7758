"""Alphabets that a program invents and draws, where no data set is on disk."""
