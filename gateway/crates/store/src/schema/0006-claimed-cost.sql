ALTER TABLE replicas ADD COLUMN claimed_cost_acu_per_day REAL;

-- What phones have said that they cost, and nobody vouches for.
UPDATE replicas SET claimed_cost_acu_per_day = cost_acu_per_day, cost_acu_per_day = NULL
    WHERE source = 'registration' AND verification <> 'assigned'
    AND NOT EXISTS (SELECT 1 FROM json_each(held) WHERE value = 'cost_acu_per_day');
