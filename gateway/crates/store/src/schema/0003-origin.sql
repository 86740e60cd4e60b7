ALTER TABLE replicas ADD COLUMN deployment TEXT;
ALTER TABLE replicas ADD COLUMN processor TEXT;
ALTER TABLE replicas ADD COLUMN public_key TEXT CHECK (length(public_key) = 64);
ALTER TABLE replicas ADD COLUMN pin TEXT CHECK (length(pin) = 64);
ALTER TABLE replicas ADD COLUMN verification TEXT NOT NULL DEFAULT 'none'
    CHECK (verification IN ('none', 'token', 'signed', 'assigned'));
ALTER TABLE replicas ADD COLUMN announced INTEGER;
ALTER TABLE replicas ADD COLUMN proven INTEGER;

CREATE UNIQUE INDEX replicas_by_public_key ON replicas (public_key) WHERE public_key IS NOT NULL;
