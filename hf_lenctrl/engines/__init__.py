"""The length constraint in other people's engines."""
