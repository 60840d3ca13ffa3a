"""What all compiler passes share: what a pass is, pipelines, the hook into Triton, reports."""
