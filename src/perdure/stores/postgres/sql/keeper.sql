-- What the keeper of a lease does, on a connection of its own.

-- name: renew
-- Extends the lease of an incarnation; false when it is gone. Locks its row of `worker`, found by its primary key.
SELECT perdure.renew($1::bigint, $2::bigint, $3::bigint)
