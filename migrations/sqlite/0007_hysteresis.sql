-- Job options: the object `calm` is gone. Its `trust` is now `max_batch_growth`; its other rules do not exist any more.
UPDATE job
SET spec = json_remove(json_set(spec, '$.max_batch_growth', coalesce(json_extract(spec, '$.calm.trust'), 2.0)), '$.calm')
WHERE json_type(spec, '$.calm') IS NOT NULL;
