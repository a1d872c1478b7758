"""The public data sets, one file each, and a person's own class folders."""
