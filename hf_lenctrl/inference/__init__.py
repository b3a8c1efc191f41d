"""Generation for users: the pipeline, requested lengths, the choice among outputs, graceful ends, ensembles."""
