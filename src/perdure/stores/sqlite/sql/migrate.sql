-- The book of migrations. All but `applied` need the write lock.

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
