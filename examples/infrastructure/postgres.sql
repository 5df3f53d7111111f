-- Roles for leaderrun, after `leaderctl store init` has created the table:
--   psql -v ON_ERROR_STOP=1 -f postgres.sql DATABASE

-- A candidate: postgres://app:PASSWORD@HOST/DATABASE
CREATE ROLE app LOGIN PASSWORD 'PASSWORD';
GRANT USAGE ON SCHEMA public TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public.leaderrun TO app;

-- For people and dashboards that only read.
CREATE ROLE reader LOGIN PASSWORD 'PASSWORD';
GRANT USAGE ON SCHEMA public TO reader;
GRANT SELECT ON TABLE public.leaderrun TO reader;
