"""Tests of the whole project; their folders are those of `src/warpgrad`."""
