"""Intents of sentences: a pretrained encoder that adapts to a new domain in a few steps."""
