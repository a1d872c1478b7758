"""Continual learning (§4.3, App. J)."""
