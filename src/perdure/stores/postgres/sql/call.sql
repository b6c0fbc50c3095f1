-- The verbs that are functions of the schema, as they are called. What they lock and use stands with the functions.

-- name: now
SELECT perdure.clock_ms();

-- name: enqueue
SELECT existed, same FROM perdure.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: enqueue_all
SELECT ids, existed, same, limits FROM perdure.enqueue_all($1, $2);

-- name: open_batch
SELECT ids, existed, same, limits FROM perdure.open_batch($1, $2, $3, $4);

-- name: deliver
SELECT perdure.deliver($1, $2, $3, $4, $5);

-- name: cancel
SELECT perdure.cancel($1, $2, $3, $4);

-- name: retry
SELECT perdure.retry($1, $2, $3);

-- name: retry_many
SELECT perdure.retry_many($1, $2, $3);

-- name: remove
SELECT perdure.remove($1, $2, $3);

-- name: set_labels
SELECT perdure.set_labels($1, $2, $3);

-- name: prune
SELECT removed, changed FROM perdure.prune($1, $2, $3, $4, $5);

-- name: limits
SELECT perdure.limits($1, $2);

-- name: change_scope
SELECT perdure.change_scope($1, $2, $3, $4, $5, $6, $7);

-- name: schedules
SELECT perdure.schedules($1);

-- name: put_schedule
SELECT perdure.put_schedule($1, $2, $3, $4, $5);

-- name: pause_schedule
SELECT perdure.pause_schedule($1, $2, $3);

-- name: remove_schedule
SELECT perdure.remove_schedule($1);

-- name: is_over
SELECT perdure.is_over($1);

-- name: register
SELECT perdure.register($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: suspects
SELECT workers, runs, now, next_at FROM perdure.suspects($1, $2);

-- name: first_end
SELECT min(e.until) FROM perdure.lease AS e;

-- name: take_back
SELECT perdure.take_back($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: retire
SELECT perdure.retire($1, $2, $3);

-- name: exchange
SELECT * FROM perdure.exchange(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48, $49, $50
);
