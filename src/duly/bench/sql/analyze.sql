analyze duly.jobs, duly.runs
