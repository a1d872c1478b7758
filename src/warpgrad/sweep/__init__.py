"""`warpgrad sweep`: search for settings on the validation split; each trial is an ordinary run.

Only `study.py` and `trials.py` need Optuna, which is an extra.
"""
