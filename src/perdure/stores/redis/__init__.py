"""The store on Redis 7.0, Valkey 8.0, or newer."""

from perdure.errors import StoreUrlError

try:
    import hiredis as _driver
except ImportError as error:
    raise StoreUrlError("Redis needs the driver hiredis: run  pip install 'perdure[redis]'") from error

from perdure.stores.redis.cluster import ClusterStore
from perdure.stores.redis.opening import open_redis
from perdure.stores.redis.store import RedisStore
from perdure.stores.redis.url import Location, parse_url

del _driver

__all__ = ["ClusterStore", "Location", "RedisStore", "open_redis", "parse_url"]
