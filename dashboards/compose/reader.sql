-- Read-only role for Grafana. Its password comes from the environment of the container.
\getenv password EVENSTEP_DASHBOARDS_PASSWORD
CREATE ROLE evenstep_dashboards LOGIN PASSWORD :'password';
GRANT pg_read_all_data TO evenstep_dashboards;
ALTER ROLE evenstep_dashboards SET default_transaction_read_only = on;
