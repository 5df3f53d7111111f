//! A PostgreSQL and a standby. This test is their failover manager: it promotes the standby at once, and what was the
//! primary is ended before others can reach it again, and becomes a standby. Real managers take longer to notice.

use super::Cluster;
use super::member::{Member, each, told_by, wait_calmly_until};
use crate::support::network::{Network, address};
use crate::support::postgres::{SERVANT, binaries, template};
use crate::support::prelude::*;
use crate::support::server::run;
use std::io::Write;

pub struct Postgres {
    members: Vec<Member>,
    synchronous: bool,
    data: TempDir,
}

const SERVERS: usize = 2;

impl Postgres {
    /// A commit counts when the standby has it.
    pub fn synchronous(network: &Network) -> Box<dyn Cluster> {
        Box::new(Self::start(network, true))
    }

    pub fn asynchronous(network: &Network) -> Box<dyn Cluster> {
        Box::new(Self::start(network, false))
    }

    fn start(network: &Network, synchronous: bool) -> Self {
        let mut cluster = Self { members: Vec::new(), synchronous, data: TempDir::new().expect("a scratch directory") };
        let primary = cluster.directory(0);
        run(Command::new("cp").arg("-a").arg(template()).arg(&primary));
        let file = fs::File::options().append(true).open(primary.join("pg_hba.conf"));
        let lines = b"host all all samenet trust\nhost replication all samenet trust\n";
        file.and_then(|mut file| file.write_all(lines)).expect("initdb has made it");
        SERVANT.gets(cluster.data.path());
        for host in 0..SERVERS {
            if host > 0 {
                cluster.copy(0, host);
            }
            let mut command = SERVANT.command(binaries().join("postgres"));
            command.arg("-D").arg(cluster.directory(host));
            let (listen, sockets) = (address(host), cluster.data.path().display());
            for setting in [
                "port=5432".to_owned(),
                format!("listen_addresses={listen}"),
                format!("unix_socket_directories={sockets}"),
                "unix_socket_permissions=0700".to_owned(),
                "fsync=off".to_owned(),
                // As in tests/support/postgres.rs.
                "dynamic_shared_memory_type=mmap".to_owned(),
                "shared_buffers=16MB".to_owned(),
                "wal_keep_size=64MB".to_owned(),
                "wal_receiver_timeout=5s".to_owned(),
            ] {
                command.args(["-c", &setting.replace(&sockets.to_string(), &format!("{sockets}/{host}"))]);
            }
            cluster.members.push(Member::start(network, host, &command));
            wait_calmly_until("PostgreSQL answers", String::new, || Self::sql(host, "SELECT 1").is_some());
        }
        cluster.settle();
        cluster
    }

    /// With the directory of its socket beside it.
    fn directory(&self, host: usize) -> PathBuf {
        let sockets = self.data.path().join(host.to_string());
        fs::create_dir_all(&sockets).expect("it can be made");
        SERVANT.gets(&sockets);
        self.data.path().join(format!("data{host}"))
    }

    /// Makes `host` a standby of `primary`.
    fn copy(&self, primary: usize, host: usize) {
        let directory = self.directory(host);
        let _ = fs::remove_dir_all(&directory);
        SERVANT.gets(self.data.path());
        let mut command = SERVANT.command(binaries().join("pg_basebackup"));
        command
            .args(["-h", &address(primary), "-U", "postgres", "-R"])
            .args("-X stream -c fast --no-sync -D".split(' '));
        run(command.arg(&directory));
    }

    fn sql(host: usize, statement: &str) -> Option<String> {
        // What Debian has in PATH is a script that takes longer than the question.
        let (psql, address) = (binaries().join("psql"), address(host));
        let url = format!("postgres://postgres@{address}/postgres");
        told_by(&[psql.to_str().expect("text"), "-XAtq", "-d", &url, "-c", statement])
    }

    /// Once the standby follows, commits wait for it, if they are to.
    fn settle(&self) {
        wait_calmly_until("the standby follows", String::new, || self.leading(None).is_some_and(Self::has_standby));
        let statements = ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"];
        let wait_from_now_on =
            |primary| statements.iter().all(|statement| Self::sql(primary, statement).is_some()) && self.is_whole();
        if self.synchronous {
            wait_calmly_until("commits wait for the standby", String::new, || {
                self.leading(None).is_some_and(wait_from_now_on)
            });
        }
    }

    fn has_standby(primary: usize) -> bool {
        Self::sql(primary, "SELECT state FROM pg_stat_replication WHERE application_name = 'walreceiver'")
            .is_some_and(|state| state == "streaming")
    }
}

impl Cluster for Postgres {
    fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres?sslmode=disable", super::hosts(SERVERS, ""))
    }

    fn members(&mut self) -> &mut [Member] {
        &mut self.members
    }

    fn promote_instead_of(&mut self, lost: usize) {
        let next = 1 - lost;
        // Nobody is left whom its commits could wait for.
        let statements = [
            "ALTER SYSTEM RESET synchronous_standby_names",
            "SELECT pg_reload_conf()",
            "SELECT pg_promote(false) WHERE pg_is_in_recovery()",
        ];
        let promoted = || statements.iter().all(|statement| Self::sql(next, statement).is_some());
        wait_calmly_until("the standby is promoted", String::new, promoted);
    }

    fn fence(&mut self, lost: usize) -> bool {
        self.members[lost].kill();
        true
    }

    fn bring_back(&mut self, lost: usize) {
        self.copy(1 - lost, lost);
        self.members[lost].start_again();
        self.settle();
    }

    fn leading(&self, without: Option<usize>) -> Option<usize> {
        let said = each(SERVERS, without, |host| Self::sql(host, "SELECT pg_is_in_recovery()"));
        said.iter().position(|said| said.as_deref() == Some("f"))
    }

    fn is_whole(&self) -> bool {
        let synchronous = if self.synchronous { "sync" } else { "async" };
        let state = |primary| Self::sql(primary, "SELECT state || ' ' || sync_state FROM pg_stat_replication");
        self.leading(None).and_then(state).is_some_and(|state| state == format!("streaming {synchronous}"))
    }
}
