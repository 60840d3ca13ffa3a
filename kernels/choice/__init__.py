"""Which configuration a problem gets: `choose`, by cost models, among candidates."""
