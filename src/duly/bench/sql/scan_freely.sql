-- For statements that read whole tables, which Duly's own connections avoid.
set enable_seqscan = on
