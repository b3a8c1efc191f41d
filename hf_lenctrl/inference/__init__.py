"""Generation for users: the pipeline, `fit`, requested lengths, and the choice among outputs."""
