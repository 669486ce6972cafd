-- Makes one day's partition.
--   $1 parent  $2 day  $3 maximum number of rows to move out of the default partition, while other sessions wait
select duly.make_partition($1, $2, $3) as became
