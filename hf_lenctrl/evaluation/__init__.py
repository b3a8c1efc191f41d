"""Measure lengths and texts, and report the figures."""
