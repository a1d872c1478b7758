"""`warpgrad sweep`: settings chosen by search on the validation split, each trial an ordinary run.

Only `study.py` and `trials.py` need Optuna; it is an extra.
"""
