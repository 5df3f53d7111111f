//! A leader's directory that is moved away, and another one in its place: the next leader waits until the tree is dead.

use super::*;
use std::cell::RefCell;
use std::os::unix::fs::symlink;

fn deep() -> Place {
    let place = open_place();
    Place { url: format!("file:{}", place.path("a/b/store").display()), ..place }
}

impl Place {
    fn start_at(&mut self, owner: &str, url: &str) {
        let flags = ["--store", url, "--renew", "2s", "--kill-after", "300ms", "--stop-timeout", "300ms"];
        self.fleet.start(owner, &flags, &["ignore-term"], &[]);
    }

    /// One leads while `replace` happens, and another one comes by way of the same URL.
    fn story(mut self, replace: impl Fn(&Self)) {
        let url = self.url.clone();
        self.start_at("one", &url);
        let leader = self.fleet.leader();
        replace(&self);
        self.start_at("two", &url);
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
        deep().story(|deep| deep.replace(replaced));
    }
}

#[test]
fn a_symbolic_link_on_the_way_leads_elsewhere() {
    let mut deep = open_place();
    fs::create_dir_all(deep.path("one/b")).unwrap();
    fs::create_dir_all(deep.path("other/b")).unwrap();
    symlink("one", deep.path("way")).unwrap();
    deep.url = format!("file:{}", deep.path("way/b/store").display());
    deep.story(|deep| {
        fs::remove_file(deep.path("way")).unwrap();
        symlink("other", deep.path("way")).unwrap();
    });
}

#[test]
fn a_parent_is_replaced_and_strangers_sit_on_all_names() {
    let mut deep = deep();
    let url = deep.url.clone();
    deep.start_at("before", &url);
    deep.fleet.leader();
    let seats = seats_of(deep.fleet.pid("before").as_raw());
    deep.fleet.stop("before");
    let _stranger = Stranger::fills("squat", &seats);
    let flood = RefCell::new(None);
    deep.story(|deep| {
        // As many strangers connect to the leader's sockets as fit.
        let seats = seats_of(deep.fleet.pid("one").as_raw());
        flood.replace(Some(Stranger::fills("flood", &seats)));
        deep.replace("a/b");
    });
}

#[test]
fn one_directory_in_two_mount_namespaces_is_replaced() {
    let mut deep = deep();
    let url = deep.url.clone();
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", env!("CARGO_BIN_EXE_leaderrun"), "--store", &url, "--renew", "2s"]);
    elsewhere.env("LEADERRUN_CONFIG", "/dev/null");
    deep.fleet.start_as(elsewhere, "one", &[], &[], &[]);
    let leader = deep.fleet.leader();
    deep.replace("a/b");
    deep.start_at("two", &url);
    deep.fleet.leader_where(|life| life.term > leader.term);
    deep.fleet.conclude();
}
