"""The search: `run.run_search` drives it, `policy` decides, `state` is what the events of a run add up to."""
