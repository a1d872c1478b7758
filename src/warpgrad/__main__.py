"""`python -m warpgrad` is `warpgrad`."""

from warpgrad.cli import main

main()
