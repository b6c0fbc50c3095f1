-- The book of migrations, and what they made. `book` and `record` need the write lock.

-- name: book
CREATE TABLE IF NOT EXISTS migration (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL
);

-- name: booked
-- Whether the file has such a book.
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migration';

-- name: applied
SELECT number, name, checksum FROM migration ORDER BY number;

-- name: record
INSERT INTO migration (number, name, checksum) VALUES (:number, :name, :checksum);

-- name: schema
-- What the file is made of. SQLite's own tables have no statement, or a name of its own.
SELECT type || ' ' || name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\';
