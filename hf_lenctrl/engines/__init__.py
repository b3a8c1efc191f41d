"""The length constraint in other engines, and the pipeline as a class for Ray Data."""
