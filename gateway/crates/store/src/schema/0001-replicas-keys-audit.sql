CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE replicas (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    url TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    models TEXT NOT NULL CHECK (json_type(models) = 'object'),
    slots INTEGER,
    context_tokens INTEGER,
    dialect TEXT,
    labels TEXT NOT NULL CHECK (json_type(labels) = 'object'),
    expires_at INTEGER,
    cost_acu_per_day REAL,
    api_key TEXT,
    drained INTEGER NOT NULL CHECK (drained IN (0, 1)),
    source TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT;

CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    prefix TEXT NOT NULL,
    digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),
    limits TEXT NOT NULL CHECK (json_type(limits) = 'object'),
    models TEXT NOT NULL CHECK (json_type(models) = 'array'),
    class TEXT,
    max_class TEXT,
    created INTEGER NOT NULL,
    revoked INTEGER
) STRICT;

CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL CHECK (json_valid(detail))
) STRICT;

CREATE INDEX audit_by_target ON audit (target, id);
