CREATE TABLE holders (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    expires INTEGER NOT NULL
) STRICT;

CREATE TABLE files (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0 CHECK (bytes >= 0),
    created INTEGER NOT NULL,
    expires INTEGER,
    holder INTEGER,
    deleted INTEGER NOT NULL DEFAULT 0 CHECK (deleted IN (0, 1)),
    CHECK (deleted = 0 OR holder IS NULL)
) STRICT;

CREATE INDEX files_by_tenant ON files (tenant, key) WHERE deleted = 0;
CREATE INDEX files_unfinished ON files (holder) WHERE holder IS NOT NULL;
CREATE INDEX files_by_expiry ON files (expires) WHERE expires IS NOT NULL AND deleted = 0;
CREATE INDEX files_deleted ON files (tenant, key) WHERE deleted = 1;

CREATE TABLE pieces (
    file INTEGER NOT NULL,
    start INTEGER NOT NULL CHECK (start % 65536 = 0),
    bytes BLOB NOT NULL CHECK (length(bytes) BETWEEN 1 AND 65536),
    PRIMARY KEY (file, start)
) STRICT;

CREATE TABLE batches (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    input_file TEXT NOT NULL,
    input INTEGER NOT NULL,
    completion_window TEXT NOT NULL,
    metadata TEXT NOT NULL CHECK (json_valid(metadata)),
    permissions TEXT NOT NULL CHECK (json_valid(permissions)),
    output_expires_after INTEGER,
    idempotency_key TEXT,
    state TEXT NOT NULL,
    seal TEXT CHECK (seal IN ('complete', 'expired', 'cancelled')),
    model TEXT,
    errors TEXT CHECK (json_valid(errors)),
    output_file TEXT,
    error_file TEXT,
    created INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    in_progress INTEGER,
    finalizing INTEGER,
    completed INTEGER,
    failed INTEGER,
    expired INTEGER,
    cancelling INTEGER,
    cancelled INTEGER,
    ended INTEGER,
    lines INTEGER NOT NULL DEFAULT 0,
    lines_completed INTEGER NOT NULL DEFAULT 0,
    lines_failed INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    holder INTEGER,
    swept INTEGER NOT NULL DEFAULT 0 CHECK (swept IN (0, 1)),
    CHECK (ended IS NULL OR holder IS NULL),
    CHECK (lines_completed + lines_failed <= lines)
) STRICT;

CREATE INDEX batches_by_tenant ON batches (tenant, key);
CREATE UNIQUE INDEX batches_by_idempotency_key ON batches (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX batches_open ON batches (key) WHERE ended IS NULL;
CREATE INDEX batches_by_input ON batches (input) WHERE ended IS NULL;
CREATE INDEX batches_unswept ON batches (key) WHERE ended IS NOT NULL AND swept = 0;
CREATE INDEX batches_by_end ON batches (ended) WHERE ended IS NOT NULL AND swept = 1;

CREATE TABLE lines (
    batch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    affinity INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    holder INTEGER,
    CHECK ((state = 1) = (holder IS NOT NULL)),
    PRIMARY KEY (batch, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX lines_waiting ON lines (batch, affinity, number) WHERE state = 0;
CREATE INDEX lines_claimed ON lines (holder) WHERE state = 1;

CREATE TABLE results (
    batch INTEGER NOT NULL,
    failed INTEGER NOT NULL CHECK (failed IN (0, 1)),
    number INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (batch, failed, number)
) STRICT;
