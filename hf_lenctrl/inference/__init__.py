"""Generation for users: the pipeline, requested lengths, the choice among outputs, and graceful ends."""
