"""The length constraint in other engines."""
