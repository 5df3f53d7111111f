-- Users for leaderrun on MySQL or MariaDB, after `leaderctl store init` has created the two tables:
--   mysql DATABASE < mysql.sql

-- A candidate: mysql://app:PASSWORD@HOST/DATABASE
CREATE USER app IDENTIFIED BY 'PASSWORD';
GRANT SELECT, INSERT, UPDATE ON leaderrun TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON leaderrun_notes TO app;

-- For people and dashboards that only read.
CREATE USER reader IDENTIFIED BY 'PASSWORD';
GRANT SELECT ON leaderrun TO reader;
GRANT SELECT ON leaderrun_notes TO reader;
