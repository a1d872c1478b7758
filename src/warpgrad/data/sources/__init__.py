"""The public data sets, one file each, and a user's own class folders."""
