"""`python -m warpgrad` is `warpgrad`."""

from warpgrad.cli.main import main

main()
