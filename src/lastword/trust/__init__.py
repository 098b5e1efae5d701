"""Allowed overrides, their guarantee, and whether it still holds."""
