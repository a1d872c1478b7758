"""Few-shot classification (§4.1, App. H)."""
