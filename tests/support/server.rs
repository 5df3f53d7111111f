//! A store's real server, for the tests that are the same for all stores.

use super::prelude::*;
use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::{io, thread};

type Launch = dyn Fn(&Path, u16) -> Command + Send + Sync;
type IsUp = dyn Fn(u16) -> bool + Send + Sync;

/// A server that is one program, with what it takes to start it again; ended when this is dropped. What it says is in `log`
/// of its directory.
pub struct Daemon {
    child: Mutex<Process>,
    pub port: u16,
    pub data: TempDir,
    launch: Box<Launch>,
    is_up: Box<IsUp>,
}

impl Daemon {
    /// Starts what `launch` makes of a data directory and a free port, which is [`mortal`]. `is_up` asks whether it answers.
    pub fn start(
        program: &str,
        data: TempDir,
        launch: impl Fn(&Path, u16) -> Command + Send + Sync + 'static,
        is_up: impl Fn(u16) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (port, child) = on_a_free_port(program, |port| {
            let mut child = start_logging(launch(data.path(), port), &data.path().join("log"));
            child.comes_up(|| is_up(port)).then_some((port, child))
        });
        Self { child: Mutex::new(child), port, data, launch: Box::new(launch), is_up: Box::new(is_up) }
    }

    fn pid(&self) -> Pid {
        self.child.lock().expect("nobody panicked").pid()
    }

    pub fn end_with_children(&self) {
        end_with_children(&mut self.child.lock().expect("nobody panicked"));
    }

    fn start_again(&self) {
        wait_until("the server starts again", || {
            let mut child = start_logging((self.launch)(self.data.path(), self.port), &self.data.path().join("log"));
            let is_up = child.comes_up(|| (self.is_up)(self.port));
            *self.child.lock().expect("nobody panicked") = child;
            is_up
        });
    }
}

/// On a loopback port of its own, with a data directory of its own; ended and removed when dropped.
pub trait Server {
    /// What it is, where it is one program.
    fn daemon(&self) -> &Daemon {
        unreachable!("it tells the rest by itself")
    }

    fn port(&self) -> u16 {
        self.daemon().port
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port()))
    }

    /// What `--store` takes, for this server reached at `address`: its own, or that of a proxy before it.
    fn url(&self, address: SocketAddr) -> String;

    /// The same of the server by itself.
    fn own_url(&self) -> String {
        self.url(self.address())
    }

    /// What the programs need in their environment to be let in.
    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The process that it is, or that has started the rest of it.
    fn pid(&self) -> Pid {
        self.daemon().pid()
    }

    /// SIGKILL to all of it. None of it is left when this returns.
    fn kill(&mut self) {
        let _ = kill(self.pid(), Signal::SIGKILL);
        wait_until("the server is gone", || is_gone(self.pid().as_raw()));
    }

    /// After [`Server::kill`]: on the same port, with the data that it had. Returns once it answers.
    fn start_again(&mut self) {
        self.daemon().start_again();
    }

    /// Has it forget every lease and term, as an operator's mistake or a server without persistence does; then what
    /// `leaderctl store init` makes is made again where that is needed. Returns once it answers.
    fn wipe(&mut self) {
        unreachable!("no test needs it of such a server");
    }

    /// Deletes, by hand and behind everybody's back, the one record that says who leads `shard`.
    fn remove_lock(&mut self, _shard: &str) {
        unreachable!("no test needs it of such a server");
    }

    /// The same of all its records at once, as somebody does it who wants to be rid of them.
    fn remove_records(&mut self, shard: &str) {
        self.remove_lock(shard);
    }

    /// Makes it old, where that can be had: so that the first leader does not wait in case the store was wiped.
    fn grow_old(&mut self) {}

    /// SIGSTOP to all of it: connections stay, and its kernel acknowledges what nobody reads. Returns once it is stopped.
    fn freeze(&self) {
        // The parent first, so that it starts no others.
        stop(self.pid());
        for child in children_of(self.pid().as_raw()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGSTOP);
        }
    }

    fn thaw(&self) {
        for child in children_of(self.pid().as_raw()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGCONT);
        }
        let _ = kill(self.pid(), Signal::SIGCONT);
    }
}

/// SIGKILL to a process that may have ended, and to all that it started. None of them is left when this returns: PostgreSQL
/// does not start again while one of them is there.
pub fn end_with_children(process: &mut Process) {
    if process.try_wait().is_ok_and(|ended| ended.is_some()) {
        return;
    }
    // Stopped, it starts no others and reaps none, so their numbers stay theirs.
    stop(process.pid());
    let children = children_of(process.pid().as_raw());
    for &child in &children {
        let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
    }
    process.end();
    wait_until("all of the server is gone", || children.iter().all(|&child| is_gone(child)));
}

/// SIGSTOP. A process that is busy in the kernel goes on for a moment; it has stopped, or ended, when this returns.
fn stop(process: Pid) {
    let _ = kill(process, Signal::SIGSTOP);
    wait_until("the server is stopped", || state_of(process.as_raw()).is_none_or(|state| "TZX".contains(state)));
}

pub fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("process numbers fit"))
}

/// A zombie is gone as well: its new parent will reap it.
pub fn is_gone(pid: i32) -> bool {
    // Its first thread may end before the others do, which keep its sockets open.
    let others = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count() > 1;
    !others && state_of(pid).is_none_or(|state| ['Z', 'X'].contains(&state))
}

/// As proc_pid_stat(5) has it. None where there is no such process.
fn state_of(pid: i32) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Set where a test has a network namespace to itself: its servers may be reached by other hosts.
pub const ALONE: &str = "TEST_ALONE";

pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// The address to listen on: loopback, for no other host is to reach what tests start.
pub fn listen_on() -> &'static str {
    if is_alone() { "0.0.0.0" } else { "127.0.0.1" }
}

/// Makes what the store needs, as an operator would: with `leaderctl store init`.
pub fn prepare(server: &dyn Server) {
    wait_until("leaderctl store init succeeds", || init(server, &[]));
}

/// Says that nobody has used it, which makes it old.
pub fn vouch_for(server: &dyn Server) {
    assert!(init(server, &["--new"]), "it is not new");
}

fn init(server: &dyn Server, words: &[&str]) -> bool {
    let mut init = super::fleet::leaderctl();
    init.args(["--store", &server.own_url(), "store", "init"]).args(words);
    init.envs(server.environment().iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
    init.status().expect("leaderctl starts").success()
}

/// What `start` makes of a free port. None of it where another program was faster to take that.
pub fn on_a_free_port<T>(program: &str, start: impl FnMut(u16) -> Option<T>) -> T {
    let mut ports = std::iter::repeat_with(super::ports::free_port).take(20);
    ports.find_map(start).unwrap_or_else(|| panic!("{program} does not start: tests/run installs it"))
}

/// What the programs need to be let in by a server that does as AWS does.
pub const AWS: &[(&str, &str)] = &[
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_CONFIG_FILE", "/dev/null"),
];

/// What is to die with its parent dies with the *thread* that started it, and threads of tests end.
pub fn by_a_thread_that_stays(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (sender, received) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, done) in received {
                let _ = done.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let (done, started) = mpsc::channel();
    orders.lock().expect("nobody panicked").send((command, done)).expect("the thread lives");
    started.recv().expect("the thread lives")
}

/// A program that dies with us, however we end: see [`by_a_thread_that_stays`].
pub fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// Starts what is [`mortal`], and lets nobody hear what it says.
pub fn start_quietly(command: Command) -> Process {
    start_logging(command, Path::new("/dev/null"))
}

/// The same, with what it says at the end of a file.
pub fn start_logging(mut command: Command, file: &Path) -> Process {
    let log = fs::File::options().append(true).create(true).open(file).expect("a log file");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor")).stderr(log);
    by_a_thread_that_stays(command).expect("setpriv starts: install util-linux").into()
}

/// Waits until something accepts connections there. False when `child` ended before that: the port was taken.
pub fn listens(child: &mut Process, port: u16) -> bool {
    child.comes_up(|| is_open(port))
}

pub fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// The user that runs a server which does not run as root.
#[derive(Clone, Copy)]
pub struct Servant(pub &'static str);

impl Servant {
    /// None when we are not root.
    fn ids(self) -> Option<(u32, u32)> {
        let named = |name| nix::unistd::User::from_name(name).ok().flatten();
        let user = nix::unistd::geteuid().is_root().then(|| named(self.0).or_else(|| named("nobody")));
        user.flatten().map(|user| (user.uid.as_raw(), user.gid.as_raw()))
    }

    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some((user, group)) = self.ids() {
            command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--clear-groups"]);
        }
        command.arg(program);
        command
    }

    pub fn gets(self, directory: &Path) {
        if let Some((user, group)) = self.ids() {
            run(Command::new("chown").args(["-R", &format!("{user}:{group}")]).arg(directory));
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// A data directory to copy, which `make` initialises as `data` in a directory of the servant's. It is made once, for
    /// that takes seconds.
    pub fn template(self, name: &str, make: impl FnOnce(&Path)) -> PathBuf {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if !place.exists() {
            let scratch = TempDir::new().expect("a scratch directory");
            self.gets(scratch.path());
            make(scratch.path());
            fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).expect("cargo's directory");
            let beside = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory beside it");
            run(Command::new("cp").arg("-a").arg(scratch.path().join("data")).arg(beside.path()));
            // Another test program may have been faster; then theirs is as good.
            let _ = fs::rename(beside.path().join("data"), &place);
        }
        place
    }
}

/// A table of one's own on a server that others use as well.
pub struct Table {
    server: &'static (dyn Server + Sync),
    age: fn(&str),
    name: String,
}

impl Table {
    /// `age` makes what a table says of the server's age so old that nobody waits.
    pub fn of(server: &'static (dyn Server + Sync), age: fn(&str)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self { server, age, name: format!("own{}", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }
}

impl Server for Table {
    fn daemon(&self) -> &Daemon {
        self.server.daemon()
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("{}?table={}", self.server.url(address), self.name)
    }

    fn kill(&mut self) {
        unreachable!("others use the server");
    }

    fn grow_old(&mut self) {
        (self.age)(&self.name);
    }
}

/// What a client says that is installed with its server: an error if it fails.
pub fn answer(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The same for a store that is asked and for one that tells: what happens to the processes of a host is not the store's
/// doing.
macro_rules! two_kinds {
    ($stories:ident: $($names:tt)*) => {
        #[cfg(feature = "dynamodb")]
        $stories!(dynamodb, crate::support::dynamo::Server::durable(), [$($names)*]);
        #[cfg(feature = "redis")]
        $stories!(redis, crate::support::redis::Server::start(), [$($names)*]);
    };
}

/// `stories!(STORE, START, [NAMES])` for every store that has a server: START starts one.
macro_rules! every_store {
    ($stories:ident: $($names:tt)*) => {
        #[cfg(feature = "dynamodb")]
        $stories!(dynamodb, crate::support::dynamo::Server::durable(), [$($names)*]);
        #[cfg(feature = "bucket")]
        $stories!(bucket, crate::support::bucket::Server::durable(), [$($names)*]);
        #[cfg(feature = "redis")]
        $stories!(redis, crate::support::redis::Server::start(), [$($names)*]);
        #[cfg(feature = "postgres")]
        $stories!(postgres, crate::support::postgres::Server::start(), [$($names)*]);
        #[cfg(feature = "mysql")]
        $stories!(mysql, crate::support::mysql::Server::start(), [$($names)*]);
        #[cfg(feature = "nats")]
        $stories!(nats, crate::support::nats::Server::start(), [$($names)*]);
        #[cfg(feature = "etcd")]
        $stories!(etcd, crate::support::etcd::Server::start(), [$($names)*]);
        // tests/run skips these where there is no kube-apiserver.
        #[cfg(feature = "kubernetes")]
        $stories!(kubernetes, crate::support::kubernetes::Server::start(), [$($names)*]);
    };
}
