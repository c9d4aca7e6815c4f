-- Job options: the object `calm` is gone. Its `trust` is now `max_batch_growth`; its other rules do not exist any more.
UPDATE job
SET spec = (spec::jsonb - 'calm'
            || jsonb_build_object('max_batch_growth', coalesce(spec::jsonb -> 'calm' -> 'trust', '2.0')))::text
WHERE spec::jsonb ? 'calm';
