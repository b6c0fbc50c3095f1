"""The store on a Redis Cluster: runs are spread over partitions, each of which is a store of its own.

A partition has all its keys under one hash tag, so that scripts work on it as on a single server. What goes beyond one
partition is done here: where a run is, waits for runs of other partitions, one exchange with several partitions, lists.
"""

from perdure.stores.redis.cluster.store import ClusterStore

__all__ = ["ClusterStore"]
