-- For what reads whole tables: Duly's own connections avoid that.
set enable_seqscan = on
