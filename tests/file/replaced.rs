//! A leader's directory that is moved away, and another one in its place: the next leader waits until the tree is dead.

use super::*;
use std::cell::RefCell;
use std::os::unix::fs::symlink;

/// `file:SCRATCH/a/b/store`.
struct Deep {
    fleet: Fleet,
    url: String,
}

impl Deep {
    fn new() -> Self {
        let Place { fleet } = Place::new();
        let url = format!("file:{}", fleet.scratch.path().join("a/b/store").display());
        Self { fleet, url }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.fleet.scratch.path().join(name)
    }

    fn start(&mut self, owner: &str, url: &str) {
        let flags = ["--store", url, "--renew", "2s", "--kill-after", "300ms", "--stop-timeout", "300ms"];
        self.fleet.start(owner, &flags, &["ignore-term"], &[]);
    }

    /// One leads while `replace` happens, and another one comes by way of `url`.
    fn story(mut self, url: &str, replace: impl Fn(&Self)) {
        let first = self.url.clone();
        self.start("one", &first);
        let leader = self.fleet.leader();
        replace(&self);
        self.start("two", url);
        self.fleet.leader_where(|life| life.term > leader.term);
        let lives = self.fleet.conclude();
        assert!(lives.len() >= 2, "{lives:?}");
    }

    fn replace(&self, name: &str) {
        fs::rename(self.path(name), self.path("away")).unwrap();
        fs::create_dir(self.path(name)).unwrap();
    }
}

#[test]
fn the_directory_itself_or_one_above_it_is_replaced() {
    for replaced in ["a/b/store", "a/b", "a"] {
        let deep = Deep::new();
        let url = deep.url.clone();
        deep.story(&url, |deep| deep.replace(replaced));
    }
}

#[test]
fn a_parent_is_replaced_and_the_next_one_comes_another_way() {
    let deep = Deep::new();
    fs::create_dir(deep.path("a")).unwrap();
    symlink("a", deep.path("way")).unwrap();
    let url = format!("file:{}", deep.path("way/b/store").display());
    deep.story(&url, |deep| deep.replace("a/b"));
}

#[test]
fn a_symbolic_link_on_the_way_leads_elsewhere() {
    let mut deep = Deep::new();
    fs::create_dir_all(deep.path("one/b")).unwrap();
    fs::create_dir_all(deep.path("other/b")).unwrap();
    symlink("one", deep.path("way")).unwrap();
    deep.url = format!("file:{}", deep.path("way/b/store").display());
    let url = deep.url.clone();
    deep.story(&url, |deep| {
        fs::remove_file(deep.path("way")).unwrap();
        symlink("other", deep.path("way")).unwrap();
    });
}

#[test]
fn a_parent_is_replaced_and_strangers_sit_on_all_names() {
    let mut deep = Deep::new();
    let url = deep.url.clone();
    deep.start("before", &url);
    deep.fleet.leader();
    let seats = seats_of(deep.fleet.pid("before").as_raw());
    deep.fleet.stop("before");
    let mut stranger = Stranger::does(["squat"].into_iter().chain(seats.iter().map(String::as_str)));
    for seat in &seats {
        assert_eq!(stranger.says(), "full", "{seat}");
    }
    let flood = RefCell::new(None);
    deep.story(&url, |deep| {
        // As many strangers connect to the leader's sockets as fit.
        let seats = seats_of(deep.fleet.pid("one").as_raw());
        let mut flooding = Stranger::does(["flood"].into_iter().chain(seats.iter().map(String::as_str)));
        for seat in &seats {
            assert_eq!(flooding.says(), "full", "{seat}");
        }
        flood.replace(Some(flooding));
        deep.replace("a/b");
    });
}

#[test]
fn one_directory_in_two_mount_namespaces_is_replaced() {
    let mut deep = Deep::new();
    let url = deep.url.clone();
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", env!("CARGO_BIN_EXE_leaderrun"), "--store", &url, "--renew", "2s"]);
    elsewhere.env("LEADERRUN_CONFIG", "/dev/null");
    deep.fleet.start_as(elsewhere, "one", &[], &[], &[]);
    let leader = deep.fleet.leader();
    deep.replace("a/b");
    deep.start("two", &url);
    deep.fleet.leader_where(|life| life.term > leader.term);
    deep.fleet.conclude();
}

#[test]
fn two_directories_of_one_name_in_two_mount_namespaces_are_two_stores() {
    let deep = Deep::new();
    let private = |words: &str| {
        let script = format!(
            "mount -t tmpfs none {0} && exec {1} --store {2} {words}",
            deep.path("").display(),
            env!("CARGO_BIN_EXE_leaderrun"),
            deep.url,
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).env("LEADERRUN_CONFIG", "/dev/null");
        command
    };
    let mut leader = private("shard sh -c 'echo up; exec sleep 1000'").stdout(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    leader.stdout.as_mut().unwrap().read_exact(&mut up).unwrap();
    let other = end_of(&mut private("-n shard true"));
    leader.kill().unwrap();
    leader.wait().unwrap();
    other.good();
}

#[test]
fn a_parent_is_replaced_under_a_leader_who_is_another_member_of_the_group() {
    let Place { mut fleet } = Place::new();
    let path = |name: &str| fleet.scratch.path().join(name);
    let share = |name: &str| {
        fs::create_dir(path(name)).unwrap();
        std::os::unix::fs::chown(path(name), Some(0), Some(30000)).unwrap();
        set_mode(&path(name), 0o2770);
    };
    fs::write(path("stamps"), "").unwrap();
    set_mode(&path("stamps"), 0o666);
    set_mode(fleet.scratch.path(), 0o777);
    for program in [PathBuf::from(env!("CARGO_BIN_EXE_leaderrun")), support::fleet::stamp_program()] {
        let to = path(program.file_name().unwrap().to_str().unwrap());
        assert!(Command::new("cp").arg(program).arg(to).status().unwrap().success());
    }
    share("a");
    let url = format!("file:{}", path("a/store").display());
    let (away, program, stamp, stamps) = (path("away"), path("leaderrun"), path("stamp"), path("stamps"));
    let member = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--regid=65534", "--groups=30000"]).arg(&program);
        command.args(["--store", &url, "--renew", "2s", "--owner", user, "shard"]).arg(&stamp).arg(&stamps);
        command.env("LEADERRUN_CONFIG", "/dev/null");
        command
    };
    let (one, other) = (member("20001"), member("20002"));
    let a = path("a");
    fleet.launch("20001", one);
    let leader = fleet.leader();
    fs::rename(&a, &away).unwrap();
    fs::create_dir(&a).unwrap();
    std::os::unix::fs::chown(&a, Some(0), Some(30000)).unwrap();
    set_mode(&a, 0o2770);
    fleet.launch("20002", other);
    fleet.leader_where(|life| life.term > leader.term);
    fleet.conclude();
}
