"""Lower bounds: saved-set programmes at single instants, proved in exact integers. See docs/explanation/bounds.md."""
