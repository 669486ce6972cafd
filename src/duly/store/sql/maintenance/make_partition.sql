-- $1 parent  $2 day  $3 how many rows of that day may be moved out of the default partition, while others wait
select duly.make_partition($1, $2, $3) as became
