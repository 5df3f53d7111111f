//! A real PostgreSQL for tests, and a PgBouncer before it.

use super::prelude::*;
use super::server::{self, Daemon, Servant, run};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::LazyLock;

pub const LOCKS: &str = "public.leaderrun";
/// Who owns the databases, and has no password.
const ADMIN: &str = "postgres";
pub const SERVANT: Servant = Servant("postgres");

pub struct Server(Daemon);

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these lines as well in its configuration.
    pub fn start_with(settings: &[&str]) -> Self {
        Self::prepared_with(settings, |_| {})
    }

    /// As [`Server::start_with`], once `prepare` had a hand in its data directory.
    pub fn prepared_with(settings: &[&str], prepare: impl Fn(&Path)) -> Self {
        let scratch = TempDir::new().expect("a scratch directory");
        let data = scratch.path().join("data");
        run(Command::new("cp").arg("-a").arg(template()).arg(&data));
        if server::is_alone() {
            let file = fs::File::options().append(true).open(data.join("pg_hba.conf"));
            let line = b"host all all samenet trust\n";
            file.and_then(|mut file| file.write_all(line)).expect("initdb has made it");
        }
        prepare(&data);
        SERVANT.gets(scratch.path());
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let launch = move |directory: &Path, port: u16| {
            let mut command = SERVANT.command(binaries().join("postgres"));
            command.arg("-D").arg(directory.join("data"));
            let defaults = [
                format!("port={port}"),
                format!("unix_socket_directories={}", directory.display()),
                format!("listen_addresses={}", server::listen_on()),
                // kill -9 leaves the kernel's cache alone, so nothing that was committed is lost by it.
                "fsync=off".to_owned(),
                // In the data directory: one that is killed would leave it in /dev/shm.
                "dynamic_shared_memory_type=mmap".to_owned(),
                "shared_buffers=16MB".to_owned(),
                "max_connections=200".to_owned(),
            ];
            for setting in defaults.iter().chain(&settings) {
                command.args(["-c", setting]);
            }
            command
        };
        // It listens while it still starts. A killed one leaves the file, but does not listen.
        let is_up = move |port: u16| server::is_open(port) && is_ready(&data);
        Self(Daemon::start("PostgreSQL", scratch, launch, is_up))
    }

    pub fn directory(&self) -> &Path {
        self.0.data.path()
    }

    /// `postgres://` and what else it takes, with `options` behind the question mark.
    pub fn url_with(&self, options: &str) -> String {
        format!("postgres://{ADMIN}@127.0.0.1:{}/postgres?{options}", self.0.port)
    }

    /// What psql says: a line for each row, with | between columns.
    pub fn psql(&self, database: &str, statements: &str) -> Result<String, String> {
        server::answer(self.client(database).args(["-c", statements]))
    }

    pub fn sql(&self, statements: &str) -> String {
        self.psql("postgres", statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    pub fn client(&self, database: &str) -> Command {
        client(self.0.port, database)
    }

    /// Lets the table's memory reach an hour back.
    pub fn age(&self, table: &str) {
        self.sql(&format!(
            "UPDATE {table} SET text = (text::jsonb || \
             jsonb_build_object('created_ms', (text::jsonb ->> 'created_ms')::bigint - 3600000))::text, \
             session = (txid_current() & 4294967295)::text || substr(session, position(' ' IN session)) \
             WHERE part = 'marker'"
        ));
    }
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.0
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("postgres://{ADMIN}@{address}/postgres")
    }

    fn kill(&mut self) {
        self.0.end_with_children();
    }

    fn wipe(&mut self) {
        self.sql(&format!("DROP TABLE IF EXISTS {LOCKS}"));
        server::prepare(self);
    }

    fn remove_lock(&mut self, shard: &str) {
        self.sql(&format!("DELETE FROM {LOCKS} WHERE shard = '{shard}'"));
    }

    fn grow_old(&mut self) {
        self.age(LOCKS);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// By the file in which it tells pg_ctl(1) how far it is. To ask it takes a program and a session each time.
fn is_ready(data: &Path) -> bool {
    fs::read_to_string(data.join("postmaster.pid")).is_ok_and(|text| text.lines().any(|line| line.trim() == "ready"))
}

fn client(port: u16, database: &str) -> Command {
    // What Debian has in PATH is a script that takes longer than the question.
    let mut command = Command::new(binaries().join("psql"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
        command.env_remove(name);
    }
    command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", ADMIN, "-d", database]);
    command.arg("-p").arg(port.to_string());
    command
}

/// One that is shared by the tests of a program that do it no harm: each uses a table of its own.
pub fn shared() -> &'static Server {
    // A machine with many processors runs many tests at once, each of which opens some stores.
    static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start_with(&["max_connections=500"]));
    &SHARED
}

pub fn table() -> server::Table {
    server::Table::of(shared(), |table| shared().age(table))
}

/// A pooler in transaction mode, gone when this is dropped.
pub struct Bouncer {
    _scratch: TempDir,
    port: u16,
    _child: Process,
}

impl Bouncer {
    pub fn before(server: &Server, mode: &str) -> Self {
        server::on_a_free_port("PgBouncer", |port| {
            let scratch = TempDir::new().expect("a scratch directory");
            let path = scratch.path().display();
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n\
                 unix_socket_dir=\nauth_type=trust\nauth_file={path}/users\npool_mode={mode}\nlogfile={path}/log\n",
                server.0.port
            );
            fs::write(scratch.path().join("ini"), settings).expect("a file");
            fs::write(scratch.path().join("users"), format!("\"{ADMIN}\" \"\"\n")).expect("a file");
            SERVANT.gets(scratch.path());
            let program =
                ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| Path::new(path).exists());
            let program = program.expect("pgbouncer is missing: install the package pgbouncer");
            let mut command = SERVANT.command(program);
            command.arg("-q").arg(scratch.path().join("ini"));
            let mut child = server::start_quietly(command);
            server::listens(&mut child, port).then_some(Self { _scratch: scratch, port, _child: child })
        })
    }

    pub fn url_with(&self, options: &str) -> String {
        format!("postgres://{ADMIN}@127.0.0.1:{}/postgres?{options}", self.port)
    }
}

/// Debian puts each version's programs into a directory of its own.
pub fn binaries() -> &'static Path {
    static BINARIES: LazyLock<PathBuf> = LazyLock::new(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
        versions.retain(|directory| directory.join("postgres").exists());
        versions.sort();
        versions.pop().expect("PostgreSQL is missing: install the package postgresql")
    });
    &BINARIES
}

pub fn template() -> &'static Path {
    static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
        let version = binaries().parent().and_then(Path::file_name).expect("VERSION/bin").to_string_lossy();
        SERVANT.template(&format!("postgresql-{version}"), |directory| {
            let mut command = SERVANT.command(binaries().join("initdb"));
            command.args(["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C", "-N", "--wal-segsize=1", "-D"]);
            run(command.arg(directory.join("data")));
        })
    });
    &TEMPLATE
}
