//! A real MariaDB for tests, or the MySQL whose server program TEST_MYSQLD names.

use super::prelude::*;
use super::server::{self, Daemon, Servant, run};
use std::net::SocketAddr;
use std::sync::LazyLock;

/// Where the leases are, and who may do everything there without a password, over TCP as well.
pub const DATABASE: &str = "leases";
pub const ADMIN: &str = "admin";
pub const LOCKS: &str = "leases.leaderrun";
pub const SERVANT: Servant = Servant("mysql");

/// The server program, if it is one of MySQL and not of MariaDB.
fn mysqld() -> Option<String> {
    std::env::var("TEST_MYSQLD").ok().filter(|program| !program.is_empty())
}

pub fn is_mariadb() -> bool {
    mysqld().is_none()
}

pub struct Server(Daemon);

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these options as well, such as `--autocommit=0`.
    pub fn start_with(settings: &[&str]) -> Self {
        let scratch = TempDir::new().expect("a scratch directory");
        run(Command::new("cp").arg("-a").arg(template()).arg(scratch.path().join("data")));
        SERVANT.gets(scratch.path());
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let launch = move |directory: &Path, port: u16| {
            let mut command = SERVANT.command(mysqld().unwrap_or_else(|| "mariadbd".to_owned()));
            command.args(defaults(&directory.join("data"), &directory.join("sock")));
            command.args([format!("--port={port}"), format!("--bind-address={}", server::listen_on())]).args(&settings);
            command
        };
        let answers = |port: u16| server::answer(client(port).args(["-e", "SELECT 1"])).is_ok();
        let is_up = move |port: u16| server::is_open(port) && answers(port);
        Self(Daemon::start("the server", scratch, launch, is_up))
    }

    pub fn socket(&self) -> PathBuf {
        self.0.data.path().join("sock")
    }

    /// `mysql://` and what else it takes, with `options` behind the question mark.
    pub fn url_with(&self, options: &str) -> String {
        format!("mysql://{ADMIN}@127.0.0.1:{}/{DATABASE}?{options}", self.0.port)
    }

    /// What the client says: a line for each row, with tabs between columns.
    pub fn ask(&self, statements: &str) -> Result<String, String> {
        server::answer(self.client().args(["-e", statements]))
    }

    pub fn sql(&self, statements: &str) -> String {
        self.ask(statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    pub fn client(&self) -> Command {
        client(self.0.port)
    }

    /// How many requests it has answered: each is a transaction, which it commits.
    pub fn requests(&self) -> u64 {
        let row = self.sql("SHOW GLOBAL STATUS LIKE 'com_commit'");
        row.split_whitespace().last().and_then(|count| count.parse().ok()).expect("a number")
    }

    /// Lets the table's memory reach an hour back.
    pub fn age(&self, table: &str) {
        self.sql(&format!(
            "UPDATE {table} SET text = JSON_SET(text, '$.created_ms', \
             CAST(JSON_EXTRACT(text, '$.created_ms') AS SIGNED) - 3600000) WHERE part = 'marker'"
        ));
    }
}

impl server::Server for Server {
    fn daemon(&self) -> &Daemon {
        &self.0
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("mysql://{ADMIN}@{address}/{DATABASE}")
    }

    fn wipe(&mut self) {
        self.sql(&format!("DROP TABLE IF EXISTS {LOCKS}"));
        server::prepare(self);
    }

    /// The table's trigger refuses it.
    fn remove_lock(&mut self, shard: &str) {
        let _ = self.ask(&format!("DELETE FROM {LOCKS} WHERE shard = '{shard}'"));
    }

    fn grow_old(&mut self) {
        self.age(LOCKS);
    }
}

fn client(port: u16) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "-N", "-B", "-h", "127.0.0.1", "-u", ADMIN, "-D", DATABASE]);
    command.arg("--init-command=SET autocommit = 1");
    command.arg("-P").arg(port.to_string()).stdin(Stdio::null());
    command
}

/// One that is shared by the tests of a program that do it no harm: each uses a table of its own.
pub fn shared() -> &'static Server {
    // A machine with many processors runs many tests at once, each of which opens some stores.
    static SHARED: LazyLock<Server> = LazyLock::new(|| Server::start_with(&["--max-connections=500"]));
    &SHARED
}

pub fn table() -> server::Table {
    server::Table::of(shared(), |table| shared().age(table))
}

/// A kill leaves the kernel's cache alone, so nothing that was committed is lost by it.
fn defaults(data: &Path, socket: &Path) -> Vec<String> {
    let mut settings = vec![
        "--no-defaults".to_owned(),
        format!("--datadir={}", data.display()),
        format!("--socket={}", socket.display()),
        // Ours may be closed to it.
        format!("--tmpdir={}", data.display()),
        "--innodb-flush-log-at-trx-commit=2".to_owned(),
        "--innodb-buffer-pool-size=8M".to_owned(),
        "--skip-name-resolve".to_owned(),
    ];
    let own: &[&str] = if is_mariadb() {
        &["--innodb-log-file-size=4M", "--performance-schema=0"]
    } else {
        // It logs statements unless told otherwise, and then lets few users make a trigger.
        &["--innodb-redo-log-capacity=8M", "--mysqlx=OFF", "--secure-file-priv=", "--skip-log-bin"]
    };
    settings.extend(own.iter().map(|&setting| setting.to_owned()));
    settings
}

fn template() -> &'static Path {
    static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
        SERVANT.template(if is_mariadb() { "mariadb" } else { "mysql" }, |directory| {
            let (data, setup) = (directory.join("data"), directory.join("setup.sql"));
            let server = mysqld().unwrap_or_else(|| "mariadbd".to_owned());
            if is_mariadb() {
                run(SERVANT.command("mariadb-install-db").env("TMPDIR", directory).args([
                    "--no-defaults",
                    &format!("--datadir={}", data.display()),
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    "--innodb-log-file-size=4M",
                ]));
            } else {
                let mut command = SERVANT.command(&server);
                command.args(defaults(&data, &directory.join("sock")));
                // It makes the data directory, and so has none for temporary files yet.
                run(command.arg(format!("--tmpdir={}", directory.display())).arg("--initialize-insecure"));
            }
            let statements = format!(
                "CREATE DATABASE {DATABASE};\nCREATE USER {ADMIN}@'%';\n\
                 GRANT ALL ON *.* TO {ADMIN}@'%' WITH GRANT OPTION;\nSHUTDOWN;\n"
            );
            fs::write(&setup, statements).expect("a file");
            // It ends with the statements.
            let mut command = SERVANT.command(&server);
            command.args(defaults(&data, &directory.join("sock")));
            run(command.arg("--skip-networking").arg(format!("--init-file={}", setup.display())));
            // The name of a server: each copy makes one of its own.
            let _ = fs::remove_file(data.join("auto.cnf"));
        })
    });
    &TEMPLATE
}
