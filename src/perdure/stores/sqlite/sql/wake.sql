-- Who wants to be told of changes. `listen` and `unlisten` need the write lock.

-- name: listen
INSERT OR REPLACE INTO listener (path, topic, pid) VALUES (:path, :topic, :pid);

-- name: unlisten
-- Uses the primary key.
DELETE FROM listener WHERE path IN (SELECT value FROM json_each(:paths));

-- name: listed
-- Whether a listener has its row. Uses the primary key.
SELECT EXISTS (SELECT 1 FROM listener WHERE path = :path);

-- name: listeners
-- Walks the listeners, which are few.
SELECT json_group_array(json_array(path, topic)) FROM listener;
