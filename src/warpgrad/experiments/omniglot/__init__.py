"""Multi-shot classification of alphabets (App. E-G)."""
