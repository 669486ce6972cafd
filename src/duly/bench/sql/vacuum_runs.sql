vacuum (analyze) duly.runs
