"""Which overrides are allowed, with what guarantee, and whether it still holds."""
