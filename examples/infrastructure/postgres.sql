-- Roles for leaderrun, once `leaderctl store init` has made the two tables:
--   psql -v ON_ERROR_STOP=1 -f postgres.sql DATABASE

-- A candidate: postgres://app:PASSWORD@HOST/DATABASE
CREATE ROLE app LOGIN PASSWORD 'PASSWORD';
GRANT USAGE ON SCHEMA public TO app;
GRANT SELECT, INSERT, UPDATE ON TABLE public.leaderrun TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE public.leaderrun_notes TO app;

-- People and dashboards that only look.
CREATE ROLE reader LOGIN PASSWORD 'PASSWORD';
GRANT USAGE ON SCHEMA public TO reader;
GRANT SELECT ON TABLE public.leaderrun, public.leaderrun_notes TO reader;
