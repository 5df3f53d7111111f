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
