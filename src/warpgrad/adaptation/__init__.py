"""One task under adaptation, its stacked and its traced form, and `adapt`."""
