-- Users for leaderrun on MySQL or MariaDB, after `leaderctl store init` has created the table:
--   mysql DATABASE < mysql.sql

-- A candidate: mysql://app:PASSWORD@HOST/DATABASE
CREATE USER app IDENTIFIED BY 'PASSWORD';
GRANT SELECT, INSERT, UPDATE, DELETE ON leaderrun TO app;

-- For people and dashboards that only read.
CREATE USER reader IDENTIFIED BY 'PASSWORD';
GRANT SELECT ON leaderrun TO reader;
