vacuum (analyze) duly.jobs
