"""Descent on 2-D loss surfaces (App. D)."""
