"""Large multi-shot classification (§4.2, App. H)."""
