"""Metrics of lengths and of text quality, and reports on lengths."""
