"""Decides which node leads which shards. Read in this order:

- `coordinator`: the contract: terms that begin and end;
- `assignment`: which node should lead which shard, given the live nodes;
- `member`: the part common to all coordinators: stay a member, and move towards the assignment;
- `postgres`: the default, by lease rows; `advisory`: by a session lock;
- `registry`: members listed by another server: `etcd` (over `etcd_gateway`) and `zookeeper`;
- `making`: from the settings to the coordinator they name.
"""
