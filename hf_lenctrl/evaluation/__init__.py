"""Figures of lengths and texts, and the report of them."""
