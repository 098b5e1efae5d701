"""Which overrides are let through, with what guarantee, and whether it still holds."""
