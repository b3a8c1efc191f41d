"""Use the length constraint in other engines, and the pipeline in Ray Data."""
