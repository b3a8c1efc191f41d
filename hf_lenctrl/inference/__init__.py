"""What a user generates with: the pipeline, requested lengths, the choice among outputs, graceful ends, ensembles."""
