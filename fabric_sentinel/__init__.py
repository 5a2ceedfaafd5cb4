"""fabric-sentinel: which pod slowed whose training job."""
