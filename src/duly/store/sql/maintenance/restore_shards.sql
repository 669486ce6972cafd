-- Inserts the rows of missing shards. A restored shard continues after its last epoch: a fence never goes down.
insert into duly.shards (shard, epoch)
select missing.shard, coalesce((select max(t.epoch) from duly.terms t where t.shard = missing.shard), 0)
from duly.store
cross join lateral generate_series(0, store.shard_count - 1) as missing (shard)
where not exists (select from duly.shards s where s.shard = missing.shard)
on conflict do nothing
returning shard
